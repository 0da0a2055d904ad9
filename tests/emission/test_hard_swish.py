"""HardSwish as a product of integers: what it computes, and where it is left as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import model, node, tensor
from quantizing import error, feeds_for, ops, weights

import octavo
from octavo import emission
from octavo.core import qtypes
from octavo.core.plan import Quantized
from octavo.core.scheme import Scheme
from octavo.errors import TableError
from octavo.model.runtime.session import optimized

INT8 = octavo.W8A8.but(activations=Scheme(qtypes.INT8))


def swish(gain: float = 1.0, shift: float = 0.0) -> onnx.ModelProto:
    """A HardSwish between Convs; ``gain`` and ``shift`` are those of what it reads."""
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a"], "before"),
        node("HardSwish", ["a"], ["h"], "swish"),
        node("Conv", ["h", "w1"], ["y"], "behind"),
    ]
    arrays = {
        "w0": gain * weights(16, 16, 1, 1) / 4,
        "b0": np.full(16, shift, np.float32),
        "w1": weights(16, 16, 1, 1, seed=1) / 4,
    }
    return model(nodes, [tensor("x", [1, 16, 8, 8])], [tensor("y", [1, 16, 8, 8])], arrays, opset=17)


def number(value: ir.Value | None) -> float:
    assert value is not None and value.const_value is not None
    return float(value.const_value.numpy())


@pytest.mark.parametrize("recipe", [octavo.W8A8, INT8], ids=["uint8", "int8"])
@pytest.mark.parametrize("gain", [2.0, 40.0])
def test_it_runs_on_integers_and_is_off_by_less_than_a_step(recipe: octavo.Recipe, gain: float) -> None:
    proto = swish(gain)
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe, target="ort-cpu-vnni")
    assert result.plan.nodes["swish"].lowering == "Mul"
    if recipe is octavo.W8A8:
        runs = ops(optimized(result.model))
        assert (runs["QLinearMul"], runs["Clip"], runs["HardSigmoid"] + runs["HardSwish"]) == (1, 1, 0)
    clip = next(one for one in result.model.graph if one.op_type == "Clip")
    low, high, step = (number(v) for v in (*clip.inputs[1:], clip.outputs[0].consumers()[0].inputs[1]))
    key = result.params[next(key for key in result.params if key.tensor == "a")]
    every = np.arange(key.qtype.qmin, key.qtype.qmax + 1, dtype=np.float64)
    scale = float(key.scale)
    x = scale * (every - float(key.zero_point))
    gate = (np.clip(every, low, high) - low) * step
    true = np.clip(x / 6 + 0.5, 0, 1)
    assert np.abs(x * (gate - true)).max() < 0.3 * scale
    assert gate[0] == 0.0
    assert gate[-1] == pytest.approx(1.0, abs=1e-6)
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_range_in_which_the_gate_never_closes_keeps_the_operator() -> None:
    proto = swish(0.2, shift=1.0)
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert result.plan.nodes["swish"].lowering == "HardSwish"
    assert ops(result)["HardSwish"] == 1
    assert not ops(result)["Clip"]
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_range_in_which_it_never_opens_whole_is_cut_below_alone() -> None:
    proto = swish(1.0, shift=-3.0)
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert ops(result)["Clip"] == 1
    assert error(result, proto, feeds_for(proto)) < 0.1


@pytest.mark.parametrize("target", ["portable", "openvino", "ort-cpu-arm64"])
def test_targets_that_were_not_measured_keep_the_operator(target: str) -> None:
    assert octavo.plan(swish(2.0), target=target).nodes["swish"].lowering == "HardSwish"


def test_a_plan_from_a_file_writes_the_same() -> None:
    proto = swish(2.0)
    plan = octavo.Plan.from_dict(octavo.plan(proto, target="ort-cpu-vnni").to_dict())
    assert ops(octavo.quantize(proto, feeds_for(proto), plan=plan, target="ort-cpu-vnni"))["Clip"] == 1


def test_nothing_is_found_in_it() -> None:
    proto = swish(2.0)
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert not octavo.lint(result.model, target="ort-cpu-vnni").findings


def test_a_lowering_that_the_range_rules_out_is_an_error_that_names_the_node() -> None:
    proto = swish(0.2, shift=1.0)
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    gated = replace(result.plan, nodes={**result.plan.nodes, "swish": Quantized("HardSwish", "Mul")})
    with pytest.raises(TableError, match="'swish'"):
        emission.emit(ir.from_proto(proto), gated, result.params)
