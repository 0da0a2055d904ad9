"""What is imported when it is first used: the entries of registries, and sympy."""

from __future__ import annotations

import gc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# ---- Registries: a table of names with one line ``module:attribute`` for each thing that can be added
#
# The module is imported when the entry is used, so that a registry costs nothing to import.


def load_entry(package: str, entry: str) -> Any:
    """Return the attribute that the line ``module:attribute`` names, of a module of the package."""
    module, _, attribute = entry.partition(":")
    return getattr(import_module(f"{package}.{module}"), attribute)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause Python's cycle collector, for what makes many objects and frees none.

    It would walk through a growing graph, or through modules while they are imported, again and again: a
    tenth of the time of an import. What was made meanwhile counts as old afterwards, so that it is not walked
    through at once then either.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


# ---- sympy is loaded when it is first used
#
# onnx-ir imports sympy for arithmetic with the names of dimensions, which Octavo does not do. It takes 0.25 s
# of the 0.43 s that ``import onnx_ir`` takes (``python -X importtime``). While onnx-ir is being imported, a
# lazy module stands in for it. One that lies in ``sys.modules`` beforehand would not do: the import statement
# asks it for its specification, and that loads it.

_PACKAGE = "onnx_ir"
_PUT_OFF = ("sympy", "onnx_ir._symbolic_shapes")  # the second uses the first while it is loaded


class _Finder:
    """Finds the modules that are loaded later, while onnx-ir is being imported, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module lazily, or None to leave it to the other finders."""
        if name not in _PUT_OFF or not _is_loading(sys.modules.get(_PACKAGE)):
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None and hasattr(found.loader, "exec_module"):
            found.loader = importlib.util.LazyLoader(found.loader)
        return found


def _is_loading(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def install() -> None:
    """Put sympy off from now on, unless onnx-ir is loaded already."""
    if _PACKAGE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
