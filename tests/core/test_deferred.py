"""What is loaded when it is used: sympy, policies, formats; and imports that the collector does not stop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octavo.emission import FORMATS, output_format

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


def printed(code: str) -> list[str]:
    """What a script prints in a process of its own, line by line."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_a_policy_or_a_format_that_nothing_asks_for_is_not_loaded() -> None:
    modules = ["planning.policies.weight_only", "planning.half_compute", "emission.integer", "emission.qdq"]
    code = (
        f"import sys, octavo; octavo.quantize; print([m for m in {modules} if 'octavo.' + m in sys.modules])"
    )
    assert printed(code) == ["[]"]


def test_the_command_line_itself_needs_no_package_of_numbers_or_models() -> None:
    code = "import sys, octavo.cli.main; print([m for m in ('numpy', 'onnx', 'onnx_ir') if m in sys.modules])"
    assert printed(code) == ["[]"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_has_the_name_of_its_module(name: str) -> None:
    assert output_format(name).name == name


_COLLECTED = """
import gc
import {package}
found = []
gc.callbacks.append(lambda phase, info: found.append(phase))
{package}.quantize_static if {package}.__name__ != "octavo" else {package}.quantize
print(len(found), gc.isenabled())
gc.disable()
{package}.QuantType if {package}.__name__ != "octavo" else {package}.evaluate
print(gc.isenabled())
"""


@pytest.mark.parametrize("package", ["octavo", "octavo.quantization"])
def test_nothing_is_collected_while_names_are_imported_and_the_collector_is_as_it_was(package: str) -> None:
    assert printed(_COLLECTED.format(package=package)) == ["0 True", "False"]
