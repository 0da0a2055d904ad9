"""What probes find out inside the runtime is what numpy finds in the float model's own tensors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from numpy.lib.stride_tricks import sliding_window_view
from quantizing import run

import octavo
from octavo import calibration, pipeline
from octavo.algorithms.layers.input_moments import InputMoments, input_moments
from octavo.algorithms.layers.layer import Layer, layer_of
from octavo.algorithms.layers.probes import probed
from octavo.algorithms.layers.statistics_requests import ChannelClasses, StatisticsRequests, histogram_names
from octavo.calibration.methods.spread import Spread
from octavo.calibration.statistics import MagnitudeState
from octavo.model.files import io

from .nets import images


def moments_of(
    proto: onnx.ModelProto, name: str, samples: list[dict[str, np.ndarray]], *, gram: bool
) -> InputMoments | None:
    loaded = io.load(proto)
    pipeline.ready(loaded, 17, None)
    layer = next(found for n in loaded.graph if n.name == name and isinstance(found := layer_of(n), Layer))
    requests = StatisticsRequests()
    requests.add_moments([layer], gram=gram)
    before = io.to_bytes(loaded)
    with probed(loaded, requests) as needs:
        stats = calibration.collect(loaded, needs, samples)
    assert io.to_bytes(loaded) == before
    return input_moments(layer, stats)


@pytest.mark.parametrize("group, strides, pads", [(1, 1, 0), (2, 2, 1), (8, 1, 1), (4, 2, 0)])
def test_products_of_a_convolution_are_those_of_its_patches(group: int, strides: int, pads: int) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 8 // group, 3, 3)).astype(np.float32)
    conv = node("Conv", ["x", "w"], ["y"], "conv", group=group, strides=[strides] * 2, pads=[pads] * 4)
    proto = model([conv], [tensor("x", [1, 8, 10, 10])], [tensor("y", None)], {"w": w})
    found = moments_of(proto, "conv", images(3), gram=True)
    assert found is not None and found.gram is not None
    squares = np.mean([run(proto, f)["y"].astype(np.float64) ** 2 for f in images(3)], axis=(0, 1, 3, 4))
    rows = w.astype(np.float64).reshape(group, 8 // group, -1)
    np.testing.assert_allclose(found.error(rows).reshape(-1), squares, rtol=1e-4)
    means = np.mean([run(proto, f)["y"].astype(np.float64) for f in images(3)], axis=(0, 1, 3, 4))
    np.testing.assert_allclose(np.einsum("gok,gk->go", rows, found.mean).reshape(-1), means, atol=1e-5)


WINDOWS = {
    "plain": ((3, 3), (1, 1), (1, 1), (0, 0, 0, 0)),
    "padded": ((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    "strided": ((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    "uneven pads": ((2, 3), (2, 1), (1, 1), (0, 2, 1, 0)),
    "dilated": ((3, 2), (1, 2), (2, 3), (2, 0, 2, 1)),
    "stride above kernel": ((1, 1), (3, 2), (1, 1), (0, 0, 0, 0)),
}


@pytest.mark.parametrize("size", ["known", "open"])
@pytest.mark.parametrize("window", WINDOWS)
def test_means_of_a_convolution_are_those_of_its_patches(window: str, size: str) -> None:
    kernel, strides, dilations, pads = WINDOWS[window]
    rng = np.random.default_rng(3)
    samples = [{"x": (rng.standard_normal((2, 4, 9, 8)) + 0.5).astype(np.float32)} for _ in range(3)]
    conv = node("Conv", ["x", "w"], ["y"], "conv", strides=strides, dilations=dilations, pads=pads, group=2)
    shape = [2, 4, 9, 8] if size == "known" else [2, 4, "h", "w"]
    w = {"w": rng.standard_normal((6, 2, *kernel)).astype(np.float32)}
    proto = model([conv], [tensor("x", shape)], [tensor("y", None)], w)
    found = moments_of(proto, "conv", samples, gram=False)
    assert found is not None and found.gram is None

    x = np.concatenate([sample["x"] for sample in samples]).astype(np.float64)
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    patches = sliding_window_view(x, reach, axis=(2, 3))[:, :, :: strides[0], :: strides[1]]
    patches = patches[..., :: dilations[0], :: dilations[1]]
    means = patches.mean(axis=(0, 2, 3)).reshape(2, -1)
    np.testing.assert_allclose(found.mean, means, rtol=1e-5, atol=1e-6)
    assert found.count == pytest.approx(6 * patches.shape[2] * patches.shape[3])
    squares = (patches**2).mean(axis=(0, 2, 3)).reshape(2, -1)
    np.testing.assert_allclose(found.square, squares, rtol=1e-5 if size == "open" else 0.4)


def test_means_along_one_axis() -> None:
    rng = np.random.default_rng(3)
    samples = [{"x": (rng.standard_normal((1, 4, 11)) + 0.5).astype(np.float32)}]
    conv = node("Conv", ["x", "w"], ["y"], "conv", strides=[2], pads=[1, 1])
    w = {"w": rng.standard_normal((6, 4, 3)).astype(np.float32)}
    proto = model([conv], [tensor("x", [1, 4, 11])], [tensor("y", None)], w)
    found = moments_of(proto, "conv", samples, gram=False)
    assert found is not None
    x = np.pad(samples[0]["x"].astype(np.float64), ((0, 0), (0, 0), (1, 1)))
    means = sliding_window_view(x, 3, axis=2)[:, :, ::2].mean(axis=(0, 2)).reshape(1, -1)
    np.testing.assert_allclose(found.mean, means, rtol=1e-5, atol=1e-6)


def test_a_batch_of_none_adds_nothing() -> None:
    w = {"w": np.ones((6, 4, 3, 3), np.float32)}
    conv = node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])
    proto = model([conv], [tensor("x", ["n", 4, 9, 8])], [tensor("y", None)], w)
    full = {"x": np.ones((2, 4, 9, 8), np.float32)}
    found = moments_of(proto, "conv", [full, {"x": full["x"][:0]}], gram=False)
    alone = moments_of(proto, "conv", [full], gram=False)
    assert found is not None and alone is not None
    assert found.count == alone.count
    np.testing.assert_array_equal(found.mean, alone.mean)


def test_a_long_recording_takes_little_memory() -> None:
    w = {"w": np.ones((4, 2, 10), np.float32)}
    conv = node("Conv", ["x", "w"], ["y"], "conv", strides=[2])
    proto = model([conv], [tensor("x", [1, 2, 200_000])], [tensor("y", None)], w)
    found = moments_of(proto, "conv", [{"x": np.ones((1, 2, 200_000), np.float32)}], gram=False)
    assert found is not None
    np.testing.assert_allclose(found.mean, 1.0, rtol=1e-6)


def test_a_size_that_only_an_annotation_tells_is_not_relied_on() -> None:
    w = {"w": np.ones((8, 8, 3, 3), np.float32)}
    nodes = [node("Relu", ["x"], ["r"]), node("Conv", ["r", "w"], ["y"], "conv", pads=[1, 1, 1, 1])]
    proto = model(nodes, [tensor("x", [1, 8, "h", "w"])], [tensor("y", None)], w)
    proto.graph.value_info.append(tensor("r", [1, 8, 32, 32]))
    found = moments_of(proto, "conv", [{"x": np.ones((1, 8, 48, 48), np.float32)}], gram=False)
    assert found is not None
    assert found.mean[0, 4] == pytest.approx(1.0)  # the middle of the kernel reads no padding


def test_channels_on_the_last_axis_are_all_looked_at() -> None:
    """Every sixth channel is outlier: a lattice of places over the last two axes would miss it."""
    rng = np.random.default_rng(1)
    outlier = np.where(np.arange(96) % 6 == 1, 10.0, 0.1).astype(np.float32)
    samples = [{"x": (rng.standard_normal((1, 28, 28, 96)) * outlier).astype(np.float32)} for _ in range(32)]
    w = {"w": rng.standard_normal((96, 96)).astype(np.float32) / np.where(outlier > 1, 1, 30)[:, None]}
    proto = model([node("MatMul", ["x", "w"], ["y"], "fc")], [tensor("x", [1, 28, 28, 96])],
                  [tensor("y", [1, 28, 28, 96])], {"w": w["w"].astype(np.float32)})  # fmt: skip
    result = octavo.quantize(proto, samples, effort="plain")
    exact, found = run(proto, samples[0])["y"], run(io.to_proto(result.model), samples[0])["y"]
    assert 10 * np.log10(np.sum(exact**2) / np.sum((exact - found) ** 2)) > 25


@pytest.mark.parametrize("dims", [(5, 6), (2, 5, 6)])
def test_classes_of_channels_on_the_last_axis_have_the_values_of_their_channels(
    dims: tuple[int, ...],
) -> None:
    rng = np.random.default_rng(2)
    samples = [{"x": (rng.standard_normal(dims) * np.arange(1, 7)).astype(np.float32)} for _ in range(3)]
    w = {"w": rng.standard_normal((6, 4)).astype(np.float32)}
    open_dims = ["n", *dims[1:]]
    proto = model([node("MatMul", ["x", "w"], ["y"], "fc")], [tensor("x", open_dims)], [tensor("y", None)], w)
    loaded = io.load(proto)
    pipeline.ready(loaded, 17, None)
    layer = layer_of(loaded.graph[0])
    assert isinstance(layer, Layer)
    classes = ChannelClasses(loaded.graph.inputs[0], -1, ((5, 1), (0, 2, 3, 4)))
    requests = StatisticsRequests()
    requests.add_moments([layer], gram=False)
    requests.add_histograms(classes)
    with probed(loaded, requests) as needs:
        stats = calibration.collect(loaded, needs, [*samples, {"x": samples[0]["x"][:0]}])
    values = np.stack([sample["x"].reshape(-1, 6) for sample in samples])
    for name, channels in zip(histogram_names(classes), classes.channels, strict=True):
        state = stats[name]
        assert isinstance(state, MagnitudeState)
        seen = values[:, :, list(channels)]
        assert (state.low, state.high, state.count) == (seen.min(), seen.max(), 3)
        counted = sum(Spread.of(one).counts.sum() for one in state.groups.values())
        assert counted == pytest.approx(seen.size)
    found = input_moments(layer, stats)
    assert found is not None
    np.testing.assert_allclose(found.mean[0], values.reshape(-1, 6).mean(axis=0), rtol=1e-4, atol=1e-6)


def test_channels_of_a_layer_behind_a_pooling_are_not_those_of_the_tensor() -> None:
    """The product reads 7 columns, and what is quantized in front of the pooling has 15 of them."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((7, 6)) * 10.0 ** -np.arange(7)[:, None]
    arrays = {
        "w0": rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
        "w1": weight.astype(np.float32),
        "w2": rng.standard_normal((2, 4, 3, 3)).astype(np.float32),
    }
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "conv", pads=[1, 1, 1, 1]),
        node("MaxPool", ["a"], ["b"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("MatMul", ["b", "w1"], ["c"], "fc"),
        node("Conv", ["c", "w2"], ["y"], "last", pads=[1, 1, 1, 1]),
    ]
    proto = model(nodes, [tensor("x", [1, 4, 8, 15])], [tensor("y", None)], arrays)
    samples = [{"x": rng.standard_normal((1, 4, 8, 15)).astype(np.float32)} for _ in range(32)]
    recipe = octavo.W8A8.but(placement=octavo.Placement.EVERYWHERE, steps=("clip",))
    result = octavo.quantize(proto, samples, recipe=recipe)
    exact, found = run(proto, samples[0])["y"], run(io.to_proto(result.model), samples[0])["y"]
    assert 10 * np.log10(np.sum(exact**2) / np.sum((exact - found) ** 2)) > 20
