from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run

import octavo
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps.mixed_precision import MixedPrecision
from octavo.errors import RecipeError
from octavo.targets import target

from .nets import conv_chain, images
from .stepping import EVERYWHERE, error

Feeds = dict[str, np.ndarray]
QNN = target("qnn").static_recipe


def outlier_input(seed: int = 0) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Three layers; what the second reads has a channel that is 300 times as large as the others."""
    rng = np.random.default_rng(seed)
    outlier = np.ones((16, 1, 1, 1), np.float32)
    outlier[5] = 300
    arrays = {
        "w0": (rng.standard_normal((16, 8, 1, 1)) * 0.3).astype(np.float32) * outlier,
        "w1": (rng.standard_normal((16, 16, 1, 1)) * 0.3).astype(np.float32)
        / outlier.reshape(1, 16, 1, 1) ** 2,
        "w2": (rng.standard_normal((8, 16, 3, 3)) * 0.3).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "quiet"),
        node("Conv", ["a", "w1"], ["b"], "broken"),
        node("Conv", ["b", "w2"], ["y"], "last", pads=[1, 1, 1, 1]),
    ]
    shapes = [tensor("x", ["n", 8, 10, 10])], [tensor("y", ["n", 8, 10, 10])]
    return model(nodes, *shapes, arrays), images()


def test_the_layer_that_8_bits_break_stays_float() -> None:
    proto, samples = outlier_input()
    recipe = EVERYWHERE.but(steps=("mixed-precision",))
    result = octavo.quantize(proto, samples, recipe=recipe)
    (report,) = result.steps
    assert [change.layer for change in report.changed] == ["broken"]
    assert report.changed[0].what.startswith("float with its input, ")
    assert report.changed[0].before > 0.01
    skipped = {s.node: s.reason for s in result.plan.skipped}
    assert skipped["broken"].startswith("mixed precision: 8 bits leave it")
    assert set(result.plan.nodes) == {"last"}  # the tensor between the first two stays float
    assert error(proto, samples, images(4, seed=5), recipe) < 0.1 * error(
        proto, samples, images(4, seed=5), EVERYWHERE
    )


def test_what_stands_before_a_fused_clamp_is_not_rounded_instead() -> None:
    """Before the Relu the range is 40 times as wide: to round there would be worse than behind it."""
    proto, samples = outlier_input()
    low = np.zeros(16, np.float32)
    low[2] = -10_000
    proto.graph.initializer.append(onnx.numpy_helper.from_array(low, "low"))
    proto.graph.node[0].input.append("low")
    proto.graph.node.insert(1, node("Relu", ["a"], ["r"], "relu"))
    proto.graph.node[2].input[0] = "r"
    recipe = EVERYWHERE.but(steps=("mixed-precision",))
    plain = octavo.quantize(proto, samples, recipe=EVERYWHERE)
    assert "relu" in plain.plan.fused
    result = octavo.quantize(proto, samples, recipe=recipe)
    (change,) = result.steps[0].changed
    assert change.layer == "broken" and change.what.startswith("float with its input, ")
    assert set(result.plan.nodes) == {"last"}
    assert {key.tensor for key in result.plan.entries}.isdisjoint({"a", "r"})
    fresh = images(4, seed=5)
    assert error(proto, samples, fresh, recipe) < 0.1 * error(proto, samples, fresh, EVERYWHERE)


def test_a_layer_whose_input_is_rounded_for_it_alone_goes_by_itself() -> None:
    rng = np.random.default_rng(0)
    outlier = np.ones(16, np.float32)
    outlier[3] = 500
    arrays = {
        "w": (rng.standard_normal((16, 16)) / outlier[:, None] ** 2).astype(np.float32),
        "u": rng.standard_normal((16, 8)).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "broken"),
        node("Tanh", ["h"], ["a"], "tanh"),
        node("MatMul", ["a", "u"], ["y"], "next"),
    ]
    proto = model(nodes, [tensor("x", ["n", 16])], [tensor("y", ["n", 8])], arrays)
    samples = [{"x": rng.standard_normal((6, 16)).astype(np.float32) * outlier} for _ in range(6)]
    result = octavo.quantize(proto, samples, recipe=octavo.W8A8.but(steps=("mixed-precision",)))
    (change,) = result.steps[0].changed
    assert change.layer == "broken" and change.what.startswith("float, ") and change.after == 0
    assert set(result.plan.nodes) == {"next"}


def test_local_errors_are_those_of_the_layer_on_float_inputs() -> None:
    proto, samples = outlier_input()
    plain = octavo.quantize(proto, samples, recipe=EVERYWHERE)
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("mixed-precision:layers=1",)))
    shares = {change.layer: change.before for change in result.steps[0].changed}
    arrays = {i.name: onnx.numpy_helper.to_array(i).astype(np.float64) for i in proto.graph.initializer}
    numbers = {k.tensor: p for k, p in plain.params.items()}

    def rounded(x: np.ndarray, name: str) -> np.ndarray:
        scale, zero = numbers[name].scale.astype(np.float64), numbers[name].zero_point.astype(np.float64)
        return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale

    shape = (-1, 1, 1, 1)
    scales = numbers["w1"].scale.astype(np.float64).reshape(shape)
    w = np.clip(np.rint(arrays["w1"] / scales), -127, 127) * scales
    noise = signal = 0.0
    for feeds in samples:
        a = np.einsum("oi,nihw->nohw", arrays["w0"][:, :, 0, 0], feeds["x"].astype(np.float64))
        b = np.einsum("oi,nihw->nohw", arrays["w1"][:, :, 0, 0], a)
        off = b - np.einsum("oi,nihw->nohw", w[:, :, 0, 0], rounded(a, "a"))
        noise, signal = noise + (off**2).sum(), signal + (b**2).sum()
    assert shares["broken"] == pytest.approx(noise / signal, rel=1e-2)


def test_most_error_for_least_work_goes_first() -> None:
    proto, samples = outlier_input()
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("mixed-precision:layers=1",)))
    (report,) = result.steps
    assert [change.layer for change in report.changed] == ["broken"]
    assert {r.layer for r in report.refused} == {"quiet", "last"}
    assert any("layers=1" in r.reason for r in report.refused)


def test_a_model_that_holds_is_left_alone() -> None:
    proto = conv_chain("Relu", decades=0.2)
    result = octavo.quantize(proto, images(), recipe=EVERYWHERE.but(steps=("mixed-precision",)))
    plain = octavo.quantize(proto, images(), recipe=EVERYWHERE)
    assert not result.steps[0].changed
    assert result.plan == plain.plan
    for name, array in run(plain, images(1)[0]).items():
        np.testing.assert_array_equal(run(result, images(1)[0])[name], array)


def test_a_target_with_16_bit_kernels_gets_16_bit_activations() -> None:
    proto, samples = outlier_input()
    recipe = QNN.but(steps=("mixed-precision",))
    result = octavo.quantize(proto, samples, recipe=recipe, target="qnn")
    (report,) = result.steps
    assert [change.layer for change in report.changed] == ["broken"]
    assert report.changed[0].what.startswith("16-bit activations, ")
    assert report.changed[0].after < 0.1 * report.changed[0].before
    types = {key.tensor: params.qtype.name for key, params in result.params.items()}
    assert (types["a"], types["b"], types["x"]) == ("uint16", "uint16", "uint8")
    assert "broken" in result.plan.nodes
    plain = error(proto, samples, samples, QNN)
    assert error(proto, samples, samples, recipe) < 0.2 * plain


def test_clipping_comes_before_it_is_judged() -> None:
    proto, samples = outlier_input()
    recipe = EVERYWHERE.but(steps=("clip", "mixed-precision"))
    result = octavo.quantize(proto, samples, recipe=recipe)
    assert [report.step for report in result.steps] == ["mixed-precision", "clip"]
    assert not result.steps[0].changed  # cutting the outlier channel off is enough


def test_options_are_read_and_checked() -> None:
    assert stepping.step("mixed-precision:min-sqnr=30") == MixedPrecision(min_sqnr=30.0)
    assert stepping.step("mixed-precision:layers=4") == MixedPrecision(layers=4)
    assert MixedPrecision().least == 20.0 and MixedPrecision(layers=2).least == float("inf")
    with pytest.raises(RecipeError, match="1 or more"):
        stepping.step("mixed-precision:layers=0")
