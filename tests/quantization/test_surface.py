"""Every module, class, function and method of ``onnxruntime.quantization`` takes the same arguments here.

``stock_surface.txt`` has a line for each, with names and defaults, as of 1.31. ``DIFFERENT`` has those that
are not the same, on purpose.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import octavo.quantization as q
from octavo.quantization.qdq_loss_debug import compute_signal_to_quantization_noice_ratio
from octavo.quantization.qdq_quantizer import QDQQuantTensorType

TOP_LEVEL = (
    "CalibraterBase", "CalibrationDataReader", "CalibrationMethod", "MinMaxCalibrater", "TensorData",
    "TensorsData", "create_calibrator", "load_tensors_data", "save_tensors_data", "CudaQuantizer",
    "QDQQuantizer", "QuantFormat", "QuantType", "write_calibration_table", "DynamicQuantConfig",
    "QuantizationMode", "StaticQuantConfig", "get_qdq_config", "quantize", "quantize_dynamic",
    "quantize_static", "quant_pre_process",
)  # fmt: skip

DIFFERENT: dict[str, str] = {}  # "module.name": why its arguments are others than in stock

NAMES = {
    "QuantType": q.QuantType,
    "QuantFormat": q.QuantFormat,
    "CalibrationMethod": q.CalibrationMethod,
    "QDQQuantTensorType": QDQQuantTensorType,
    "compute_signal_to_quantization_noice_ratio": compute_signal_to_quantization_noice_ratio,
}


def rows() -> Iterator[tuple[str, str]]:
    module = ""
    for line in Path(__file__).with_name("stock_surface.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            module = line[1:-1]
        elif line:
            yield module, line


ROWS = list(rows())


def found(module: str, path: str) -> Any:
    value: Any = importlib.import_module(f"octavo.quantization.{module}")
    for part in path.split("."):
        value = inspect.getattr_static(value, part) if inspect.isclass(value) else getattr(value, part)
    return value.__func__ if isinstance(value, classmethod | staticmethod) else value


def arguments(text: str) -> ast.arguments:
    (definition,) = ast.parse(f"def f({text}): pass").body
    assert isinstance(definition, ast.FunctionDef)
    return definition.args


def default(node: ast.expr | None) -> Any:
    return (
        eval(compile(ast.Expression(node), "default", "eval"), NAMES)
        if node is not None
        else inspect.Parameter.empty
    )


def expected(text: str) -> Iterator[tuple[str, Any, bool]]:
    """Name, default and whether it may be given by position."""
    if text.startswith("/"):
        return  # whatever object() takes
    wanted = arguments(text)
    plain = [*wanted.posonlyargs, *wanted.args]
    defaults = [None] * (len(plain) - len(wanted.defaults)) + list(wanted.defaults)
    for name, value in zip(plain, defaults, strict=True):
        if name.arg != "cls":
            yield name.arg, default(value), True
    for name, value in zip(wanted.kwonlyargs, wanted.kw_defaults, strict=True):
        yield name.arg, default(value), False


def problems(target: Any, text: str) -> list[str]:
    own = [p for p in inspect.signature(target).parameters.values() if p.name not in ("self", "cls")]
    by_name = {p.name: p for p in own}
    open_ended = any(p.kind is p.VAR_KEYWORD for p in own)
    places = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    wanted = list(expected(text))
    if wanted and not places and open_ended:
        return ["it takes anything"]
    said = []
    for place, (name, value, positional) in enumerate(wanted):
        if name not in by_name:
            if not open_ended:
                said.append(f"{name} is missing")
        elif positional and (place >= len(places) or places[place] != name):
            said.append(f"{name} is in another place")
        elif not same(value, by_name[name].default):
            said.append(f"{name}={by_name[name].default!r} instead of {value!r}")
    known = {name for name, _, _ in wanted}
    said += [
        f"{p.name} is needed here"
        for p in own
        if p.name not in known and p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return said


def same(wanted: Any, own: Any) -> bool:
    """Whether a default will do: none for an empty list, and any where stock has none."""
    if isinstance(wanted, list | dict):
        return not wanted if own is None or repr(own) == "<factory>" else list(own) == list(wanted)
    return wanted is inspect.Parameter.empty or bool(wanted == own)


def test_names_of_the_package() -> None:
    assert [name for name in TOP_LEVEL if not hasattr(q, name)] == []


@pytest.mark.parametrize("module", sorted({module for module, _ in ROWS}))
def test_names_of_a_module_take_the_same_arguments(module: str) -> None:
    lines = {path_of(line): line for name, line in ROWS if name == module}
    said = {f"{module}.{path}": differs(module, line) for path, line in lines.items()}
    assert {path for path, text in said.items() if text} == {path for path in said if path in DIFFERENT}, said


def path_of(line: str) -> str:
    return line.partition("(")[0].rpartition(" ")[2]


def differs(module: str, line: str) -> str:
    """What is not as in stock."""
    head, _, text = line.partition("(")
    kind, _, path = head.rpartition(" ")
    target = found(module, path)
    if not text:
        return "" if isinstance(target, property) else "it is no property"
    text = text.rpartition(")")[0]
    if kind == "enum":
        members = {name.strip(): int(value) for name, value in (part.split("=") for part in text.split(","))}
        return "" if {m.name: m.value for m in target} == members else "it has other members"
    return "; ".join(problems(target, text))
