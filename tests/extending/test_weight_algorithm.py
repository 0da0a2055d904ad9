from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_a_weight_algorithm_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add a weight algorithm", folder)
    assert printed == "[[7.0, 0.0, 1.0, -7.0]]\n"
