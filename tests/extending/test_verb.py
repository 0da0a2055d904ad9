from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_a_verb_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add a verb", folder)
    assert "Conv: 13" in printed
