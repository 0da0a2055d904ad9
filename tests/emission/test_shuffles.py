"""Channels exchanged between groups become one Gather; what looks like it does not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import error, feeds_for, ops, weights

import octavo
from octavo.model.runtime.session import optimized


def shuffled(
    perm: tuple[int, ...] = (0, 2, 1, 3, 4), *, batch: int | str = 1, seen: bool = False
) -> onnx.ModelProto:
    """A Conv, its channels exchanged between 3 groups, a Conv."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "before", pads=[1, 1, 1, 1]),
        node("Reshape", ["a", "parts"], ["p"], "split"),
        node("Transpose", ["p"], ["t"], "exchange", perm=list(perm)),
        node("Reshape", ["t", "whole"], ["s"], "join"),
        node("Conv", ["s", "w1"], ["y"], "behind"),
    ]
    arrays = {
        "w0": weights(12, 8, 3, 3) / 8,
        "w1": weights(8, 12, 1, 1, seed=1) / 3,
        "parts": np.array([batch if batch == 1 else -1, 3, 4, 6, 6], np.int64),
        "whole": np.array([batch if batch == 1 else -1, 12, 6, 6], np.int64),
    }
    outputs = [tensor("y", [batch, 8, 6, 6]), *([tensor("t", None)] if seen else [])]
    return model(nodes, [tensor("x", [batch, 8, 6, 6])], outputs, arrays)


def test_a_shuffle_runs_as_one_gather_of_integers() -> None:
    proto = shuffled()
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert (ops(result)["Gather"], ops(result)["Reshape"], ops(result)["Transpose"]) == (1, 0, 0)
    runs = ops(optimized(result.model))
    assert (runs["QLinearConv"], runs["QuantizeLinear"], runs["DequantizeLinear"]) == (2, 1, 1)
    assert error(result, proto, feeds_for(proto)) < 0.03
    assert not octavo.lint(result.model, target="ort-cpu-vnni").findings


def test_a_plan_from_a_file_writes_the_same() -> None:
    proto = shuffled()
    plan = octavo.Plan.from_dict(octavo.plan(proto, target="ort-cpu-vnni").to_dict())
    assert ops(octavo.quantize(proto, feeds_for(proto), plan=plan, target="ort-cpu-vnni"))["Gather"] == 1


@pytest.mark.parametrize(
    "proto",
    [shuffled((0, 2, 1, 4, 3)), shuffled(seen=True)],
    ids=["another order", "seen from outside"],
)
def test_what_is_more_than_a_shuffle_is_left(proto: onnx.ModelProto) -> None:
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert not ops(result)["Gather"]
    assert error(result, proto, feeds_for(proto)) < 0.03


def test_a_shuffle_that_is_excluded_in_part_is_left() -> None:
    plan = octavo.plan(shuffled(), exclude=("join",), target="ort-cpu-vnni")
    assert all(node.lowering != "Gather" for node in plan.nodes.values())


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_other_runtimes_get_what_they_know(target: str) -> None:
    plan = octavo.plan(shuffled(), target=target)
    assert all(node.lowering != "Gather" for node in plan.nodes.values())
