from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_a_target_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add a target", folder)
    assert "Gemm the board has no integer kernel for it" in printed
