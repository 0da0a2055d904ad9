"""sympy is loaded when it is used, and not because onnx-ir is."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
import octavo
if {early}: import sympy
octavo.Recipe, octavo.inspect
loaded = "sympy.core" in sys.modules
import onnx_ir as ir
dim = ir.SymbolicDim("n") + 1
import sympy.polys
print(loaded, dim.value, sympy.Symbol("x") + sympy.polys.Poly(sympy.Symbol("y")).degree())
"""


def run(early: bool) -> str:
    """What the script prints in a process of its own."""
    code = _SCRIPT.format(early=early)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_sympy_is_loaded_by_whoever_uses_it() -> None:
    assert run(False).split() == ["False", "n", "+", "1", "x", "+", "1"]


def test_sympy_that_is_there_already_is_left_alone() -> None:
    assert run(True).split() == ["True", "n", "+", "1", "x", "+", "1"]
