from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_an_output_format_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add an output format", folder)
    assert "Conv" in printed
