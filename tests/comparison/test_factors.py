"""Models whose channels were scaled before they were quantized are compared as what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import numpy_helper
from quantizing import run

import octavo
from octavo.comparison import Comparison, compare
from octavo.comparison.factors import with_factors
from octavo.comparison.forms import best_match, plain
from octavo.model import io

WIDE, HIDDEN = 48, 160
RNG = np.random.default_rng(5)
SAMPLES = [{"x": RNG.standard_normal((2, 6, WIDE)).astype(np.float32)} for _ in range(6)]


def block(*, residual: bool) -> onnx.ModelProto:
    """A normalization with loud channels, two layers with a Relu between, and perhaps a residual."""
    gamma = np.ones(WIDE, np.float32)
    gamma[[4, 30]] = 30.0
    up = (RNG.standard_normal((WIDE, HIDDEN)) * 0.2).astype(np.float32)
    up[[4, 30]] *= 0.05
    loud = np.exp(RNG.normal(scale=1.2, size=HIDDEN)).astype(np.float32)
    arrays: dict[str, Any] = {
        "gamma": gamma,
        "beta": RNG.standard_normal(WIDE).astype(np.float32) * 0.1,
        "up": up * loud,
        "b": RNG.standard_normal(HIDDEN).astype(np.float32),
        "down": (RNG.standard_normal((HIDDEN, WIDE)) * 0.1 / loud[:, None]).astype(np.float32),
    }
    nodes = [
        node("LayerNormalization", ["x", "gamma", "beta"], ["h"], "norm", axis=-1),
        node("MatMul", ["h", "up"], ["u0"], "up_layer"),
        node("Add", ["u0", "b"], ["u1"], "bias"),
        node("Relu", ["u1"], ["u"], "act"),
        node("MatMul", ["u", "down"], ["d"], "down_layer"),
    ]
    nodes += [node("Add", ["d", "h"], ["y"], "residual")] if residual else [node("Tanh", ["d"], ["y"], "end")]
    return model(nodes, [tensor("x", ["n", 6, WIDE])], [tensor("y", ["n", 6, WIDE])], arrays)


def compared(proto: onnx.ModelProto, steps: str) -> tuple[Comparison, octavo.Result]:
    recipe = octavo.W8A8.but(steps=(steps, "bias-correction"))
    result = octavo.quantize(proto, SAMPLES, recipe=recipe)
    assert result.steps[0].changed
    return compare(proto, result, SAMPLES), result


@pytest.mark.parametrize(
    ("residual", "steps", "muls"), [(True, "smoothquant:mul=0.1", 1), (False, "smoothquant", 0)]
)
def test_factors_are_no_errors(residual: bool, steps: str, muls: int) -> None:
    proto = block(residual=residual)
    found, result = compared(proto, steps)
    assert sum(n.op_type == "Mul" for n in result.model.graph) == muls
    weights = {one.name: one for one in found.weights}
    for name in ("up", "down"):
        assert weights[name].errors.sqnr > 30
        assert weights[name].clipped < 0.05
    assert not {c.cause for c in found.culprits} & {"clipped", "coarse scale"}
    assert not found.unmatched
    local = {t.node: t.local.sqnr for t in found.tensors if t.local is not None}
    assert min(local["up_layer"], local["down_layer"]) > 30
    assert "Factors of channels were moved" in found.notes[0]


def test_outputs_are_compared_with_those_of_the_float_model_itself() -> None:
    proto = block(residual=False)
    found, result = compared(proto, "smoothquant")
    x, y = (np.concatenate([run(m, f)["y"] for f in SAMPLES]).astype(np.float64) for m in (proto, result))
    expected = 10 * np.log10(np.sum(x**2) / np.sum((x - y) ** 2))
    assert found.outputs[0].errors.sqnr == pytest.approx(expected, abs=0.01)


def test_the_model_with_factors_computes_what_the_float_model_does() -> None:
    proto = block(residual=True)
    _, result = compared(proto, "smoothquant:mul=0.1")
    copy = with_factors(best_match(proto, plain(result.model))[0])
    assert copy is not None
    for feed in SAMPLES:
        a, b = (run(m, feed)["y"].astype(np.float64) for m in (proto, io.to_proto(copy)))
        assert np.linalg.norm(a - b) < 0.005 * np.linalg.norm(a)


def test_a_scale_that_is_wrong_is_no_factor() -> None:
    proto = block(residual=False)
    made = io.to_proto(octavo.quantize(proto, SAMPLES, recipe=octavo.W8A8).model)
    for held in made.graph.initializer:
        if held.name == "down_scale":
            scale = numpy_helper.to_array(held).copy()
            scale[:20] *= 3
            held.CopyFrom(numpy_helper.from_array(scale, held.name))
    assert with_factors(best_match(proto, plain(made))[0]) is None
    first = compare(proto, made, SAMPLES).culprits[0]
    assert (first.tensor, first.kind) == ("down", "weight")


def test_a_model_without_factors_is_compared_as_it_is() -> None:
    proto = block(residual=True)
    result = octavo.quantize(proto, SAMPLES, recipe=octavo.W8A8)
    assert with_factors(best_match(proto, plain(result.model))[0]) is None
