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
from octavo.comparison.comparing import compare
from octavo.comparison.comparison_result import Comparison
from octavo.comparison.factors import with_factors
from octavo.comparison.match import best_match, plain
from octavo.model.files import io

WIDE, HIDDEN = 48, 160
RNG = np.random.default_rng(5)
SAMPLES = [{"x": RNG.standard_normal((2, 6, WIDE)).astype(np.float32)} for _ in range(6)]


def block(*, residual: bool) -> onnx.ModelProto:
    """A normalization with outlier channels, two layers with a Relu between, and perhaps a residual."""
    gamma = np.ones(WIDE, np.float32)
    gamma[[4, 30]] = 30.0
    up = (RNG.standard_normal((WIDE, HIDDEN)) * 0.2).astype(np.float32)
    up[[4, 30]] *= 0.05
    outlier = np.exp(RNG.normal(scale=1.2, size=HIDDEN)).astype(np.float32)
    arrays: dict[str, Any] = {
        "gamma": gamma,
        "beta": RNG.standard_normal(WIDE).astype(np.float32) * 0.1,
        "up": up * outlier,
        "b": RNG.standard_normal(HIDDEN).astype(np.float32),
        "down": (RNG.standard_normal((HIDDEN, WIDE)) * 0.1 / outlier[:, None]).astype(np.float32),
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
    made = broken(proto, 3.0)
    assert with_factors(best_match(proto, plain(made))[0]) is None
    first = compare(proto, made, SAMPLES).culprits[0]
    assert (first.tensor, first.kind) == ("down", "weight")


def test_a_model_without_factors_is_compared_as_it_is() -> None:
    proto = block(residual=True)
    result = octavo.quantize(proto, SAMPLES, recipe=octavo.W8A8)
    assert with_factors(best_match(proto, plain(result.model))[0]) is None


def broken(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Quantized without steps, and some scales of one weight multiplied."""
    made = io.to_proto(octavo.quantize(proto, SAMPLES, recipe=octavo.W8A8).model)
    for held in made.graph.initializer:
        if held.name == "down_scale":
            scale = numpy_helper.to_array(held).copy()
            scale[:20] *= factor
            held.CopyFrom(numpy_helper.from_array(scale, held.name))
    return made


def ending(*nodes: onnx.NodeProto, element: int) -> onnx.ModelProto:
    proto = block(residual=False)
    proto.graph.node.extend(nodes)
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("out", element, None))
    return proto


def test_where_no_output_is_float_nothing_tells_that_factors_cancel_out() -> None:
    proto = ending(
        node("ArgMax", ["y"], ["out"], "best", axis=-1, keepdims=0), element=onnx.TensorProto.INT64
    )
    assert with_factors(best_match(proto, plain(broken(proto, 3.0)))[0]) is None


def test_outputs_whose_size_depends_on_values_do_not_stop_it() -> None:
    nodes = [
        node("Sigmoid", ["y"], ["s"], "sigmoid"),
        node("Reshape", ["s", "flat"], ["f"], "flatten"),
        node("Greater", ["f", "half"], ["large"], "greater"),
        node("Compress", ["f", "large"], ["out"], "compress", axis=0),
    ]
    proto = ending(*nodes, element=onnx.TensorProto.FLOAT)
    proto.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), "flat"))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "half"))
    assert with_factors(best_match(proto, plain(broken(proto, 3.0)))[0]) is None


def test_a_scale_that_is_no_number_explains_nothing() -> None:
    proto = block(residual=False)
    assert with_factors(best_match(proto, plain(broken(proto, np.nan)))[0]) is None


@pytest.mark.parametrize(("residual", "steps"), [(True, "smoothquant:mul=0.1"), (False, "smoothquant")])
def test_factors_are_found_in_integer_operators(residual: bool, steps: str) -> None:
    proto = block(residual=residual)
    recipe = octavo.W8A8.but(style=octavo.Style.QOPERATOR, steps=(steps,))
    result = octavo.quantize(proto, SAMPLES, recipe=recipe)
    assert with_factors(best_match(proto, plain(result.model))[0]) is not None


def test_a_broken_scale_beside_factors_is_found() -> None:
    proto = block(residual=True)
    recipe = octavo.W8A8.but(steps=("smoothquant:mul=0.1:fold=no",))
    made = io.to_proto(octavo.quantize(proto, SAMPLES, recipe=recipe).model)
    for held in made.graph.initializer:
        if held.name == "down_scale":
            scale = numpy_helper.to_array(held).copy()
            scale[:20] *= 3
            held.CopyFrom(numpy_helper.from_array(scale, held.name))
    first = compare(proto, made, SAMPLES).culprits[0]
    assert (first.tensor, first.kind) == ("down", "weight")


def test_changes_are_those_of_the_model_that_is_quantized() -> None:
    proto = block(residual=True)
    proto.opset_import[0].version, proto.ir_version = 21, 10
    recipe = octavo.W8A8.but(steps=("smoothquant:mul=0.1",))
    found = compare(proto, octavo.quantize(proto, SAMPLES, recipe=recipe), SAMPLES)
    known = {name for one in proto.graph.node for name in (*one.input, *one.output)}
    assert {o.tensor for c in found.culprits for o in c.change.overrides} <= known


def test_factors_of_two_layers_undo_each_other_exactly() -> None:
    """Behind a layer that multiplies what is left between them by a thousand it would be all that is seen."""
    proto = block(residual=False)
    result = octavo.quantize(proto, SAMPLES, recipe=octavo.W8A8.but(steps=("smoothquant",)))
    found = best_match(proto, plain(result.model))[0]
    copy = with_factors(found)
    assert copy is not None
    up, down = (np.asarray(copy.graph.initializers[name].const_value.numpy()) for name in ("up", "down"))
    before = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    outputs = (up / before["up"])[0] / (up / before["up"])[0, 0]
    inputs = (down / before["down"])[:, 0] / (down / before["down"])[0, 0]
    np.testing.assert_allclose(outputs * inputs, 1.0, rtol=1e-4)
