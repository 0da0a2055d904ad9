"""Benchmarks, scripts, fuzz harnesses and examples name only what Octavo has.

Many of them run by hand, so that a name that was moved would be missed long after.
"""

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "examples", "fuzz", "scripts")


def has(module: str, name: str) -> bool:
    """Whether a module has an attribute or a submodule of this name."""
    found = importlib.import_module(module)
    is_package = hasattr(found, "__path__")
    return hasattr(found, name) or (is_package and importlib.util.find_spec(f"{module}.{name}") is not None)


def missing(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the full name of each import from Octavo, and attribute of its modules, that it lacks."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "octavo":
            for name in node.names:
                if not has(node.module or "", name.name):
                    yield node.lineno, f"{node.module}.{name.name}"
                elif isinstance(
                    getattr(importlib.import_module(node.module or ""), name.name, None), ModuleType
                ):
                    modules[name.asname or name.name] = f"{node.module}.{name.name}"
    rebound = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    } | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module and node.value.id not in rebound and not has(module, node.attr):
                yield node.lineno, f"{module}.{node.attr}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_of_octavo_that_is_used_exists(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in missing(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
