"""The notebooks of examples/ run cell by cell, and what a cell ends with can be shown."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    return ["".join(cell["source"]) for cell in data["cells"] if cell["cell_type"] == "code"]


def run_cell(text: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does, and return the value of the expression that it ends with."""
    tree = ast.parse(text)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<cell>", "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "<cell>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(path.name in text for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = tmp_path / "fashion_mnist"
    example.mkdir()
    for name in ("model.onnx", "calibration.npz", "test.npz"):
        shutil.copy(ROOT / "examples" / "fashion_mnist" / name, example / name)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    names: dict[str, Any] = {"__name__": "__main__"}
    for text in code_cells(path):
        value = run_cell(text, names)
        assert len(repr(value)) < 1000
        if type(value).__module__.startswith("octavo"):
            assert value._repr_html_().startswith("<")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
