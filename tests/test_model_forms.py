"""Each form of ``scripts/model_forms.py`` hides one difference between two models, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

from model_forms import FORMS, differing_parts, same_results  # type: ignore[import-not-found]


def dequantized(
    *,
    swapped: bool = False,
    bias_dims: tuple[int, ...] = (),
    number: int = 3,
    inner: str = "r",
    left: bool = False,
) -> Any:
    stored = [
        numpy_helper.from_array(np.full((2, 2), number, np.int8), "q"),
        numpy_helper.from_array(np.full(bias_dims, 0.5, np.float32), "scale"),
    ]
    if left:
        stored.append(numpy_helper.from_array(np.float32([6.0]), "bound"))
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], "dq"),
        helper.make_node("Relu", ["x"], [inner], "relu"),
        helper.make_node("MatMul", [inner, "w"], ["y"], "product"),
    ]
    if swapped:
        nodes[:2] = reversed(nodes[:2])
    described = (helper.make_tensor_value_info(name, 1, [1, 2]) for name in ("x", "y"))
    return helper.make_model(
        helper.make_graph(nodes, "g", [next(described)], [next(described)], stored),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def in_form(model: onnx.ModelProto, form: str) -> bytes:
    FORMS[form](model)
    return model.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("form", "change"),
    [
        ("node-order", {"swapped": True}),
        ("bias-shape", {"bias_dims": (1,)}),
        ("numbers", {"number": 4}),
        ("names", {"inner": "s"}),
        ("unread", {"left": True}),
    ],
)
def test_a_form_hides_its_own_difference(form: str, change: dict[str, object]) -> None:
    assert in_form(dequantized(), form) == in_form(dequantized(**change), form)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", sorted(set(FORMS) - {"numbers"}))
def test_no_other_form_hides_a_number(form: str) -> None:
    assert in_form(dequantized(), form) != in_form(dequantized(number=4), form)


def test_the_parts_that_differ_are_named() -> None:
    assert differing_parts(dequantized(), dequantized(number=4)) == "other numbers in q"
    assert differing_parts(dequantized(), dequantized(swapped=True)) == "another order of nodes"


def test_results_are_the_same_where_only_names_differ(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    changes: list[dict[str, Any]] = [{}, {"inner": "s"}, {"number": 4}]
    for file, change in zip(files, changes, strict=True):
        onnx.save(dequantized(**change), file)
    feeds = [{"x": np.ones((1, 2), np.float32)}]
    assert same_results(files[0], files[1], feeds)
    assert not same_results(files[0], files[2], feeds)
