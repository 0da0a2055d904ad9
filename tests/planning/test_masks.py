"""Causal masks are told from others, and a Softmax over them gets a floor that changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.session import Session
from octavo.planning import barriers

LENGTH = 32
LOWER = np.tril(np.ones((LENGTH, LENGTH), np.float32))
rng = np.random.default_rng(5)

ADDED = [node("Add", ["scores", "mask"], ["masked"], "add")]
SLICED = [
    node("Shape", ["scores"], ["shape"], "shape"),
    node("Gather", ["shape", "one"], ["length"], "length", axis=0),
    node("Slice", ["big", "zero", "length", "zero"], ["rows"], "rows"),
    node("Slice", ["rows", "zero", "length", "one"], ["mask"], "columns"),
    *ADDED,
]
CHOSEN = [node("Where", ["lower", "scores", "low"], ["masked"], "where")]
COMPUTED = [
    node("Trilu", ["minus"], ["mask"], "trilu", upper=1),
    node("Add", ["scores", "mask"], ["added"], "add"),
    node("Cast", ["added"], ["masked"], "cast", to=1),
]
ARRAYS: dict[str, Any] = {
    "zero": np.array([0], np.int64),
    "one": np.array([1], np.int64),
    "big": (1 - np.tril(np.ones((40, 40)))).astype(np.float32) * -1e4,
    "lower": LOWER > 0,
    "low": np.float32(-np.inf),
    "w": rng.normal(size=(LENGTH, 32)).astype(np.float32),
}


def attention(nodes: list[onnx.NodeProto], arrays: dict[str, Any], axis: int = -1) -> onnx.ModelProto:
    """Masked scores, their Softmax, and a linear layer that is quantized."""
    read = {name for one in nodes for name in one.input} | {"w"}
    inputs = [tensor("scores", [2, LENGTH, LENGTH])]
    if "minus" in read:
        inputs.append(tensor("minus", [LENGTH, LENGTH]))
    if "padding" in read:
        inputs.append(tensor("padding", [2, 1, LENGTH]))
    last = [
        node("Softmax", ["masked"], ["shares"], "softmax", axis=axis),
        node("MatMul", ["shares", "w"], ["y"], "layer"),
    ]
    kept = {name: value for name, value in (ARRAYS | arrays).items() if name in read}
    return model([*nodes, *last], inputs, [tensor("y", None), tensor("shares", None)], kept, opset=17)


CAUSAL = {"sliced": (SLICED, {}), "added": (ADDED, {"mask": (1 - LOWER) * -1e4}), "chosen": (CHOSEN, {})}
CAUSAL["computed"] = (COMPUTED, {})
OTHERS = {
    "small": (ADDED, {"mask": np.float32(-1e4) * (1 - LOWER[:1, :])}),
    "bias": (ADDED, {"mask": rng.normal(size=(LENGTH, LENGTH)).astype(np.float32)}),
    "few hidden": (ADDED, {"mask": np.diag(np.full(LENGTH, -1e4)).astype(np.float32)}),
    "padding": ([node("Add", ["scores", "padding"], ["masked"], "add")], {}),
    "nothing": ([node("Relu", ["scores"], ["masked"], "relu")], {}),
}


def softmax_of(proto: onnx.ModelProto) -> Any:
    return next(n for n in query.nodes(io.load(proto)) if n.op_type == "Softmax")


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_recognized(name: str) -> None:
    assert barriers.is_causal(softmax_of(attention(*CAUSAL[name])))


@pytest.mark.parametrize("name", OTHERS)
def test_other_masks_are_not(name: str) -> None:
    assert not barriers.is_causal(softmax_of(attention(*OTHERS[name])))


@pytest.mark.parametrize("name", CAUSAL)
def test_floor_under_masked_scores_changes_nothing(name: str) -> None:
    source = attention(*CAUSAL[name])
    feeds = {"scores": 6 * rng.normal(size=(2, LENGTH, LENGTH)).astype(np.float32)}
    if name == "computed":
        feeds["minus"] = np.full((LENGTH, LENGTH), -3e38, np.float32)
        np.fill_diagonal(feeds["minus"], 0)
    result = octavo.quantize(source, None)
    assert result.plan.barriers == ("softmax",)
    assert "Clip" in [n.op_type for n in result.model.graph]
    want = Session.open(source.SerializeToString()).run(feeds)["shares"]
    found = Session.open(io.to_bytes(result.model)).run(feeds)["shares"]
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-15)


def test_rows_that_differ_much_keep_their_shares() -> None:
    source = attention(ADDED, {"mask": (1 - LOWER) * -1e4})
    scores = rng.normal(size=(2, LENGTH, LENGTH)).astype(np.float32)
    scores += np.linspace(-300, 300, LENGTH, dtype=np.float32)[:, None]
    result = octavo.quantize(source, None)
    want = Session.open(source.SerializeToString()).run({"scores": scores})["shares"]
    found = Session.open(io.to_bytes(result.model)).run({"scores": scores})["shares"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-15)


def test_no_floor_where_the_target_has_no_use_for_it() -> None:
    source = attention(ADDED, {"mask": (1 - LOWER) * -1e4})
    assert octavo.plan(source, octavo.W8, target="ort-cpu-arm64").barriers == ()
    assert octavo.plan(source, octavo.W8, target="ort-cpu-vnni").barriers == ("softmax",)


def test_no_floor_over_another_axis() -> None:
    source = attention(ADDED, {"mask": (1 - LOWER) * -1e4}, axis=1)
    assert octavo.plan(source, octavo.W8, target="ort-cpu-vnni").barriers == ()
