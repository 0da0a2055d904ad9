from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_an_operator_is_one_row_of_the_op_table(folder: Path) -> None:
    printed = add_and_use("Add an operator", folder)
    assert printed == "{'Softsign': 1}\n"
