"""Defects of the stock calibrators that Octavo's own calibration does not have, by their number."""

from __future__ import annotations

import tracemalloc
from typing import Any

import builders
import numpy as np
import numpy.typing as npt
import pytest
from builders import model, node, tensor

from calibration import graphs
from octavo.calibration import collect, read
from octavo.calibration.methods import need_of
from octavo.calibration.observe.collect import Collector
from octavo.calibration.statistics import ChannelState, CombinedState, HistogramState
from octavo.core.qtypes import INT8, UINT8
from octavo.core.requests import Histogram, Request
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, MinMax, Percentile, Scheme
from octavo.errors import DataError

Array = npt.NDArray[Any]
METHODS = [MinMax(), MinMax(average=True), Entropy(), Percentile(99.9), MSE(), Distribution(), Auto()]


def passing(shape: list[Any]) -> Any:
    """A model whose tensor ``h`` is its input, negated twice."""
    return graphs.normal(
        model(
            [node("Neg", ["x"], ["minus"]), node("Neg", ["minus"], ["h"]), node("Relu", ["h"], ["y"])],
            [tensor("x", shape)],
            [tensor("y", None)],
        )
    )


@pytest.mark.parametrize("portion", [1, 2, 5])
def test_01_no_sample_is_dropped_however_the_data_is_cut(portion: int) -> None:
    values = [100, -50, 1, 2, 3]
    data = [{"x": np.float32([v])} for v in values]
    found, wanted = passing([1]), {"h": Request()}
    parts = [collect(found, wanted, data[at : at + portion], first=at) for at in range(0, 5, portion)]
    stats = parts[0]
    for part in parts[1:]:
        stats = stats.merge(part)
    assert read(stats["h"], Scheme(UINT8)) == (-50, 100, None)
    assert stats["h"].count == 5


def test_08_entropy_obeys_symmetric_and_a_histogram_keeps_its_counts_by_any_method() -> None:
    x = np.append(np.random.default_rng(0).gamma(2.0, 1.0, 5000), -0.5).astype(np.float32)
    stats = collect(passing([None]), {"h": Request(Histogram())}, [{"x": x}])
    state = stats["h"]
    assert isinstance(state, HistogramState)
    symmetric = read(state, Scheme(INT8, symmetric=True, method=Entropy()))
    assert symmetric.high > 0 > symmetric.low >= -symmetric.high
    before = state.to_bytes()
    read(state, Scheme(UINT8, method=Percentile(99)))
    assert state.to_bytes() == before
    first, counts = state.bins()
    edges = (first + np.arange(len(counts) + 1)) * state.width
    np.testing.assert_array_equal(counts, np.histogram(x.astype(np.float64), edges)[0])


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_13_samples_of_unequal_shape_are_fine_by_every_method(method: Any) -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((rows, 3)).astype(np.float32)} for rows in (1, 7, 0, 4)]
    stats = collect(passing(["n", 3]), {"h": need_of(method)}, data)
    found = read(stats["h"], Scheme(UINT8, method=method))
    values = np.concatenate([sample["x"] for sample in data])
    assert values.min() <= found.low < found.high <= values.max()
    assert stats["h"].count == 3


def test_17_channels_are_collected_again_and_again() -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((2, 3)).astype(np.float32)} for _ in range(4)]
    found, wanted = passing([2, 3]), {"h": Request(channels=1)}
    both = collect(found, wanted, data[:2]).merge(collect(found, wanted, data[2:], first=2))
    state = both["h"]
    assert isinstance(state, CombinedState)
    channels = state.parts["channels"]
    assert isinstance(channels, ChannelState)
    values = np.concatenate([sample["x"] for sample in data])
    np.testing.assert_array_equal(channels.low, values.min(axis=0))
    np.testing.assert_array_equal(channels.high, values.max(axis=0))


@pytest.mark.parametrize(
    "need", [Request(), Request(Histogram()), Request(channels=0), Request(moments=True)], ids=str
)
def test_17_nan_is_a_sentence_that_names_tensor_and_sample(need: Request) -> None:
    proto = model(
        [node("Log", ["x"], ["h"]), node("Relu", ["h"], ["y"])], [tensor("x", [2])], [tensor("y", None)]
    )
    data = [{"x": np.float32([1, 2])}, {"x": np.float32([1, -1])}]
    with pytest.raises(DataError, match=r"'h' has NaN .* sample 1 .*check that sample"):
        collect(graphs.normal(proto), {"h": need}, data)


def test_26_bins_stay_few_whatever_the_scales() -> None:
    state = HistogramState()
    rng = np.random.default_rng(0)
    for index, scale in enumerate([1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e30]):
        state.update((rng.standard_normal(1000) * scale).astype(np.float32), index)
        assert len(state.bins()[1]) <= 8192
    assert state.total == 7000


@pytest.mark.parametrize("need", [Request(), Request(Histogram())], ids=str)
def test_29_memory_does_not_grow_with_the_samples(need: Request) -> None:
    found = graphs.normal(builders.conv_net())
    names = dict.fromkeys(["x", "conv", "relu", "pool", "y"], need)

    def peak(count: int) -> int:
        rng = np.random.default_rng(0)
        data = ({"x": rng.standard_normal((32, 3, 8, 8), np.float32)} for _ in range(count))
        tracemalloc.start()
        collect(found, names, data, threads=1)
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    peak(2)
    assert peak(64) < 1.1 * peak(8) + 20_000


@pytest.mark.peer
def test_ranges_are_exactly_those_of_stock_minmax(tmp_path: Any) -> None:
    calibrate = pytest.importorskip(
        "onnxruntime.quantization.calibrate", reason="no onnxruntime.quantization"
    )
    import onnx

    proto = graphs.transformer_block()
    del proto.graph.node[11:13]  # without the mask of infinities
    proto.graph.node[11].input[0] = "scaled"
    del proto.graph.input[1:]
    nets = {
        "cnn": (builders.conv_net(), [(2, 3, 8, 8), (1, 3, 8, 8), (5, 3, 8, 8)]),
        "block": (proto, [(2, 3, 16), (1, 7, 16), (2, 5, 16)]),
    }
    for name, (net, shapes) in nets.items():
        path = tmp_path / f"{name}.onnx"
        onnx.save(net, path)
        rng = np.random.default_rng(0)
        data = [{"x": rng.standard_normal(shape).astype(np.float32)} for shape in shapes]
        stock = calibrate.MinMaxCalibrater(path, augmented_model_path=str(tmp_path / "augmented.onnx"))
        stock.augment_graph()
        stock.create_inference_session()
        samples = iter(data)
        reader = type("Reader", (), {"get_next": lambda self, samples=samples: next(samples, None)})()
        stock.collect_data(reader)
        expected = {
            t: tuple(float(np.ravel(v)[0]) for v in d.range_value) for t, d in stock.compute_data().items()
        }
        found = graphs.normal(net)
        known = {v.name for n in found.graph for v in n.outputs} | {"x"}
        wanted = {t: Request() for t in expected if t in known}
        with Collector(found, wanted, few_samples=True, threads=1) as collector:
            plain = collector.collect(data)  # the same kernels: stock runs without optimizations
        stats = collect(found, wanted, data, threads=1)
        assert len(stats) == len(plain) > 4
        for tensor_name in wanted:
            assert (plain[tensor_name].low, plain[tensor_name].high) == expected[tensor_name]
            pair = (stats[tensor_name].low, stats[tensor_name].high)
            assert pair == pytest.approx(expected[tensor_name], rel=1e-5, abs=1e-5)
