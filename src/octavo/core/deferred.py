"""Loading sympy when it is first needed.

onnx-ir imports sympy for arithmetic with the names of dimensions, which Octavo does not do. It takes as long
to load as onnx. While onnx-ir is being imported a lazy module stands in for it, which loads itself for
whoever uses it first.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_PACKAGE = "onnx_ir"
_PUT_OFF = ("sympy", "onnx_ir._symbolic_shapes")  # the second uses the first while it is loaded


class _Finder:
    """Finds what onnx-ir imports and seldom uses, with a way to load it later; nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a module lazily; None leaves it to the other finders."""
        if name not in _PUT_OFF or not _is_loading(sys.modules.get(_PACKAGE)):
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and hasattr(found.loader, "exec_module") and found.loader is not None:
            found.loader = importlib.util.LazyLoader(found.loader)
            return found
        return None


def _is_loading(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def install() -> None:
    """Do so from now on."""
    if _PACKAGE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
