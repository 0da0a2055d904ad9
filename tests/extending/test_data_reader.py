from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_a_data_reader_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add a data reader", folder)
    assert printed == "16\n"
