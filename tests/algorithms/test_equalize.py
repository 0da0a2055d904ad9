from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

from .nets import conv_chain, images
from .stepping import PER_TENSOR, difference, error, float_step, op_types, weights_of

FRESH = images(4, seed=7)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu"])
def test_the_float_model_computes_the_same(activation: str) -> None:
    proto = conv_chain(activation)
    equal, report = float_step(proto, "equalize:absorb=no", images(), PER_TENSOR)
    assert [change.layer for change in report.changed] == ["first … last"]
    assert difference(proto, equal, FRESH) < 1e-5
    assert op_types(equal) == op_types(proto)


def test_a_clip_that_binds_keeps_its_channels() -> None:
    proto = conv_chain("Clip", gain=0.1)
    bias = next(i for i in proto.graph.initializer if i.name == "b0")
    changed = onnx.numpy_helper.to_array(bias).copy()
    changed[3] = 7  # always above six
    bias.CopyFrom(onnx.numpy_helper.from_array(changed, "b0"))
    equal, report = float_step(proto, "equalize:absorb=no", images(), PER_TENSOR)
    old, new = weights_of(proto), weights_of(equal)
    assert report.changed
    kept = np.isclose(old["w0"], new["w0"], rtol=1e-6).all(axis=(1, 2, 3))
    assert kept[3] and not kept.all()
    smaller = np.abs(new["w0"]).max(axis=(1, 2, 3)) <= np.abs(old["w0"]).max(axis=(1, 2, 3)) * 1.0001
    assert smaller.all()  # so that the bound acts no earlier than before
    assert difference(proto, equal, FRESH) < 1e-5


def test_ranges_of_weights_become_alike() -> None:
    proto = conv_chain()
    equal, _ = float_step(proto, "equalize:absorb=no", images(), PER_TENSOR)

    def unlike(weight: np.ndarray) -> float:
        sizes = np.abs(weight).max(axis=(1, 2, 3))
        return float(sizes.max() / sizes.min())

    assert unlike(weights_of(equal)["w0"]) < 0.1 * unlike(weights_of(proto)["w0"])


@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_the_error_of_the_quantized_model_falls(activation: str) -> None:
    proto, samples = conv_chain(activation, gain=0.1), images()
    plain = error(proto, samples, FRESH, PER_TENSOR)
    equal = error(proto, samples, FRESH, PER_TENSOR.but(steps=("equalize",)))
    assert equal < 0.6 * plain


def test_high_biases_move_into_the_next_layer() -> None:
    rng = np.random.default_rng(5)
    arrays = {
        "w0": (rng.standard_normal((12, 8, 1, 1)) * 0.1).astype(np.float32),
        "b0": np.full(12, 30, np.float32),
        "w1": rng.standard_normal((16, 12, 1, 1)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c"], "first"),
        node("Relu", ["c"], ["a"], "act"),
        node("Conv", ["a", "w1"], ["y"], "second"),
    ]
    proto = model(nodes, [tensor("x", ["n", 8, 10, 10])], [tensor("y", ["n", 16, 10, 10])], arrays)
    equal, report = float_step(proto, "equalize", images(), PER_TENSOR)
    assert "biases absorbed" in report.changed[0].what
    assert np.abs(weights_of(equal)["b0"]).max() < 5
    assert difference(proto, equal, images()) < 1e-4
    plain = error(proto, images(), images(), PER_TENSOR)
    assert error(proto, images(), images(), PER_TENSOR.but(steps=("equalize",))) < 0.4 * plain


def test_biases_do_not_move_where_padding_is_read() -> None:
    proto = conv_chain("Relu")
    equal, _ = float_step(proto, "equalize", images(), PER_TENSOR)
    assert difference(proto, equal, images()) < 1e-4


def test_a_result_that_others_read_keeps_its_scale() -> None:
    proto = conv_chain()
    proto.graph.output.append(tensor("a0", ["n", 24, 10, 10]))
    _, report = float_step(proto, "equalize", images(), PER_TENSOR)
    reasons = {r.layer: r.reason for r in report.refused}
    assert "several consumers" in reasons["first"]
    assert [change.layer for change in report.changed] in ([], ["middle … last"])


def test_an_activation_that_keeps_no_factors_ends_the_chain() -> None:
    _, report = float_step(conv_chain("Sigmoid"), "equalize", images(), PER_TENSOR)
    assert not report.changed
    assert any("a Sigmoid follows" in r.reason for r in report.refused)


def test_channels_that_are_alike_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    signs = lambda *shape: rng.choice([-1.0, 1.0], shape).astype(np.float32)  # noqa: E731
    nodes = [
        node("Conv", ["x", "w0"], ["c"], "first"),
        node("Relu", ["c"], ["a"], "act"),
        node("Conv", ["a", "w1"], ["y"], "second"),
    ]
    arrays = {"w0": signs(12, 8, 1, 1), "w1": signs(16, 12, 1, 1)}
    proto = model(nodes, [tensor("x", ["n", 8, 10, 10])], [tensor("y", ["n", 16, 10, 10])], arrays)
    same = [{"x": np.sign(f["x"])} for f in images()]
    _, report = float_step(proto, "equalize", same, PER_TENSOR)
    assert any("not fall" in r.reason for r in report.refused)
