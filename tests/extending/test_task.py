from __future__ import annotations

from pathlib import Path

from .adding import add_and_use


def test_a_task_is_one_file_and_one_line(folder: Path) -> None:
    printed = add_and_use("Add a task", folder)
    assert printed == "confidence\n"
