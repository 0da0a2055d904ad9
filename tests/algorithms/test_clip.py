from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run

import octavo
from octavo.algorithms.layers.activation_spread import FUNCTIONS, after_function, joined
from octavo.algorithms.steps.clip import classed
from octavo.calibration.methods.spread import Spread

from .nets import conv_chain, images, outlier_block, sentences
from .stepping import EVERYWHERE, error

Feeds = dict[str, np.ndarray]
OUTPUT = "reaches an output"


def quiet_outlier(weight: float, kind: str = "linear") -> tuple[onnx.ModelProto, list[Feeds]]:
    """A layer one of whose input channels is 50 times as large as the others, with weights of this size."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((12, 8)).astype(np.float32)
    w[:, 3] = weight * np.sign(w[:, 3])
    outlier = np.ones(8, np.float32)
    outlier[3] = 50
    x = (rng.standard_normal((40, 8)) * outlier).astype(np.float32)
    if kind == "linear":
        nodes = [node("Gemm", ["x", "w"], ["y"], "fc", transB=1)]
        shapes = (["n", 8], ["n", 12])
        samples = [{"x": part} for part in np.split(x, 10)]
    else:
        nodes = [node("Conv", ["x", "w"], ["y"], "fc")]
        w, shapes = w[:, :, None, None], (["n", 8, "h", 1], ["n", 12, "h", 1])
        samples = [{"x": part.T[None, :, :, None]} for part in np.split(x, 10)]
    proto = model(nodes, [tensor("x", shapes[0])], [tensor("y", shapes[1])], {"w": w})
    return proto, samples


def range_of(result: octavo.Result, name: str) -> float:
    key = next(k for k in result.params if k.tensor == name)
    return float(result.params[key].scale) * 255


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_an_outlier_channel_with_tiny_weights_is_cut_off(kind: str) -> None:
    proto, samples = quiet_outlier(1e-5, kind)
    plain = octavo.quantize(proto, samples, recipe=EVERYWHERE)
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    change = {c.layer: c for c in result.steps[0].changed}["x"]
    assert change.after < 0.1 * change.before
    assert range_of(result, "x") < 0.2 * range_of(plain, "x")
    off = [
        np.mean([np.mean((run(one, f)["y"].astype(np.float64) - run(proto, f)["y"]) ** 2) for f in samples])
        for one in (plain, result)
    ]
    assert off[1] < 0.3 * off[0]


def test_an_outlier_channel_with_large_weights_is_kept() -> None:
    proto, samples = quiet_outlier(2.0)
    plain = octavo.quantize(proto, samples, recipe=EVERYWHERE)
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    assert range_of(result, "x") > 0.8 * range_of(plain, "x")


def test_a_reader_that_is_no_layer_keeps_the_outlier() -> None:
    proto, samples = quiet_outlier(1e-5)
    rng = np.random.default_rng(3)
    more = {"u": rng.standard_normal((8, 4)).astype(np.float32)}
    proto.graph.node.append(node("Add", ["x", "x"], ["z"], "add"))
    proto.graph.node.append(node("Gemm", ["z", "u"], ["v"], "next"))
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in more.items())
    proto.graph.output.append(tensor("v", ["n", 4]))
    plain = octavo.quantize(proto, samples, recipe=EVERYWHERE)
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    assert range_of(result, "x") > 0.8 * range_of(plain, "x")


def test_no_error_rises_by_the_measure_of_the_step() -> None:
    for proto, samples in ((conv_chain("Relu"), images()), (outlier_block(), sentences())):
        result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
        (report,) = result.steps
        assert report.changed or report.refused
        assert all(change.after < change.before for change in report.changed)
        reasons = {r.reason for r in report.refused}
        assert all(OUTPUT in reason or "no other range" in reason for reason in reasons)


def test_operators_and_size_stay_the_same() -> None:
    proto = conv_chain("Clip")
    plain = octavo.quantize(proto, images(), recipe=EVERYWHERE)
    result = octavo.quantize(proto, images(), recipe=EVERYWHERE.but(steps=("clip",)))
    assert result.bytes == plain.bytes
    assert [n.op_type for n in result.model.graph] == [n.op_type for n in plain.model.graph]
    assert error(proto, images(), images(4, seed=3), EVERYWHERE.but(steps=("clip",))) < 2 * error(
        proto, images(), images(4, seed=3), EVERYWHERE
    )


def test_channels_are_classed_by_factors_of_four() -> None:
    channels, weights = classed(np.array([1.0, 8.0, 0.0, 3.0, 0.3]))
    assert channels == ((1, 3), (0,), (4,), (2,))
    assert weights[0] == 5.5 and sum(len(c) for c in channels) == 5


def test_joined_spreads_count_all_values() -> None:
    one = Spread(np.array([0.0, 1.0, 2.0]), np.array([4.0, 2.0]))
    other = Spread(np.array([-1.0, 0.5, 2.0]), np.array([3.0, 3.0]))
    both = joined([one, other])
    np.testing.assert_allclose(both.edges, [-1, 0, 0.5, 1, 2])
    np.testing.assert_allclose(both.counts, [2, 3, 3, 4])


def silu_between(low: float) -> tuple[onnx.ModelProto, list[Feeds]]:
    """Two convolutions with a SiLU between them, whose input goes down to about this value."""
    rng = np.random.default_rng(1)
    arrays = {
        "w0": (rng.standard_normal((8, 8, 1, 1)) * 0.5).astype(np.float32),
        "b0": np.float32([0, 0, 0, 0, 0, 0, low, 0]),
        "w1": rng.standard_normal((4, 8, 1, 1)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        node("Sigmoid", ["c"], ["s"], "gate"),
        node("Mul", ["c", "s"], ["a"], "silu"),
        node("Conv", ["a", "w1"], ["y"], "last"),
    ]
    shapes = [tensor("x", ["n", 8, 10, 10])], [tensor("y", ["n", 4, 10, 10])]
    return model(nodes, *shapes, arrays), images()


def test_what_a_silu_makes_nothing_of_is_cut_off() -> None:
    proto, samples = silu_between(-40)
    plain, clipped = EVERYWHERE, EVERYWHERE.but(steps=("clip",))
    result = octavo.quantize(proto, samples, recipe=clipped)
    key = next(k for k in result.params if k.tensor == "c")
    lowest = -float(result.params[key].scale) * float(result.params[key].zero_point)
    assert -12 < lowest < -3
    assert error(proto, samples, images(4, seed=9), clipped) < 0.3 * error(
        proto, samples, images(4, seed=9), plain
    )


def test_what_goes_to_an_output_keeps_its_range() -> None:
    proto, samples = silu_between(0)
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    assert OUTPUT in {r.layer: r.reason for r in result.steps[0].refused}["y"]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_errors_behind_a_function_are_those_of_values_put_through_it(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(0, 3, 200_000)
    counts, edges = np.histogram(values, 2000)
    spread = after_function(Spread(edges, counts.astype(np.float64)), name)
    scheme = octavo.W8A8.activations
    assert isinstance(scheme, octavo.Scheme)
    f = FUNCTIONS[name]
    for low, high in ((values.min(), values.max()), (-2.0, 4.0)):
        scale = (high - low) / 255
        zero = np.rint(-low / scale)
        stored = (np.clip(np.rint(values / scale) + zero, 0, 255) - zero) * scale
        expected = np.mean((f(stored) - f(values)) ** 2)
        assert spread.error(low, high, scheme)[0] == pytest.approx(expected, rel=0.1)


def test_scores_are_judged_behind_their_sigmoid() -> None:
    rng = np.random.default_rng(4)
    arrays = {
        "w": (rng.standard_normal((8, 8, 1, 1)) * 0.6).astype(np.float32),
        "b": np.float32([-30, -20, 0, 0, 0, 0, 0, 1]),
        "flat": np.int64([0, 8, -1]),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "scores"),
        node("Reshape", ["c", "flat"], ["r"], "reshape"),
        node("Sigmoid", ["r"], ["y"], "sigmoid"),
    ]
    proto = model(nodes, [tensor("x", ["n", 8, 10, 10])], [tensor("y", ["n", 8, 100])], arrays)
    samples = images()
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    change = {c.layer: c for c in result.steps[0].changed}["c"]
    assert change.after < 0.5 * change.before
    top = max(float(run(proto, f)["y"].max()) for f in samples)
    found = max(float(run(result, f)["y"].max()) for f in samples)
    assert abs(top - found) < 0.03  # what is sure stays sure


def test_one_outlier_sample_of_many_does_not_decide_the_range() -> None:
    rng = np.random.default_rng(5)
    w = rng.standard_normal((12, 8)).astype(np.float32)
    proto = model(
        [node("Gemm", ["x", "w"], ["y"], "fc", transB=1)],
        [tensor("x", ["n", 8])],
        [tensor("y", ["n", 12])],
        {"w": w},
    )
    samples = [{"x": rng.uniform(-1, 1, (64, 8)).astype(np.float32)} for _ in range(40)]
    samples[7]["x"] *= 20
    result = octavo.quantize(proto, samples, recipe=EVERYWHERE.but(steps=("clip",)))
    assert range_of(result, "x") < 8, (
        "a range of 40 would leave the other 39 samples a twentieth of the steps"
    )
    even = [{"x": 20 * s["x"] if i != 7 else s["x"]} for i, s in enumerate(samples)]
    result = octavo.quantize(proto, even, recipe=EVERYWHERE.but(steps=("clip",)))
    assert range_of(result, "x") > 38, "where all samples fill the range, nothing is cut off"


def test_nearly_silent_samples_do_not_decide_the_range() -> None:
    proto, samples = quiet_outlier(1.0)
    silent = [{"x": 1e-6 * s["x"]} for s in samples]
    plain, beside = (
        octavo.quantize(proto, data, recipe=EVERYWHERE.but(steps=("clip",)))
        for data in (samples, samples + silent)
    )
    assert range_of(beside, "x") == pytest.approx(range_of(plain, "x"), rel=0.05)
