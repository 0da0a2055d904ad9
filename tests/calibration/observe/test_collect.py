"""Collecting: what is noted is what the tensors were, in every kind of graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from builders import model, node, tensor
from onnx import TensorProto

from calibration import graphs
from octavo.calibration import collect, load_stats, read
from octavo.calibration.observe.collect import Collector
from octavo.calibration.observe.observations import NonNegativeMap, Reduced
from octavo.calibration.observe.observing_session import observations_of
from octavo.calibration.statistics import (
    ChannelState,
    CombinedState,
    HistogramState,
    MomentsState,
    SampleExtremesState,
)
from octavo.core.qtypes import UINT8
from octavo.core.requests import Extremes, Histogram, Request
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, MinMax, Percentile, Scheme
from octavo.core.stats import Stats
from octavo.data.feeds import Feeds
from octavo.errors import DataError, ModelError, RecipeError
from octavo.model.files import io
from octavo.model.files.io import fingerprint

Array = npt.NDArray[Any]
MODES = pytest.mark.parametrize("histogram", [False, True], ids=["extremes", "histogram"])


def rows(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def every_float(found: ir.Model) -> list[str]:
    names = [value.name or "" for value in found.graph.inputs if value.dtype == ir.DataType.FLOAT]
    return names + [value.name or "" for n in found.graph for value in n.outputs]


def needs(names: list[str], histogram: bool) -> dict[str, Request]:
    extremes = Extremes(each_sample=True)
    return {name: Request(Histogram(extremes) if histogram else extremes) for name in names}


def same(stats: Stats, values: dict[str, list[Array]], *, rel: float = 1e-5) -> None:
    """Extremes of every sample are those of the values; a histogram has counted each value."""
    for name, arrays in values.items():
        expected = {i: (float(a.min()), float(a.max())) for i, a in enumerate(arrays) if a.size}
        state = stats[name]
        assert isinstance(state, SampleExtremesState | HistogramState)
        found = {int(r["index"]): (float(r["low"]), float(r["high"])) for r in state.extremes.records}
        assert list(found) == list(expected), name
        scale = max((max(abs(v) for v in pair) for pair in expected.values()), default=1.0)
        for index, pair in expected.items():
            assert found[index] == pytest.approx(pair, rel=rel, abs=scale * rel), name
        if isinstance(state, HistogramState):
            assert state.total == sum(a.size for a in arrays)


@MODES
def test_conv_net_against_fetched_values(histogram: bool) -> None:
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(1 + i, 3, 8, 8, seed=i, scale=1 + i)} for i in range(4)]
    names = every_float(found)
    stats = collect(found, needs(names, histogram), data)
    same(stats, graphs.fetch(found, names, data), rel=1e-4)
    assert stats.samples == 4
    assert list(stats) == names


@MODES
def test_transformer_block_with_ragged_batches_and_a_mask_of_infinities(histogram: bool) -> None:
    found = graphs.normal(graphs.transformer_block())
    data = []
    for i, length in enumerate((3, 7, 5)):
        keep = np.ones((2, 1, 1, length), np.bool_)
        keep[..., -1] = i != 1
        data.append({"x": rows(2, length, 16, seed=i), "keep": keep})
    names = [name for name in every_float(found) if name not in ("mask", "masked")]
    stats = collect(found, needs([*names, "mask", "masked"], histogram), data)
    same(stats, graphs.fetch(found, names, data), rel=1e-4)
    for name in ("mask", "masked"):
        assert stats[name].non_finite
        assert stats[name].low == -np.inf
    assert not stats["probs"].non_finite


@MODES
def test_float16_model(histogram: bool) -> None:
    found = graphs.normal(builders.conv_net(dtype=np.float16))
    data = [{"x": rows(2, 3, 8, 8, seed=i).astype(np.float16)} for i in range(3)]
    names = ["x", "conv", "relu", "pool", "y"]
    stats = collect(found, needs(names, histogram), data)
    values = {k: [a.astype(np.float32) for a in v] for k, v in graphs.fetch(found, names, data).items()}
    same(stats, values, rel=4e-3)


def test_double_and_integer_tensors_are_looked_at_as_floats() -> None:
    proto = model(
        [node("Mul", ["x", "x"], ["square"]), node("ArgMax", ["square"], ["y"], axis=1)],
        [tensor("x", ["n", 4], TensorProto.DOUBLE)],
        [tensor("y", None, TensorProto.INT64)],
    )
    found = graphs.normal(proto)
    x = rows(2, 4).astype(np.float64)
    stats = collect(found, needs(["x", "square", "y"], False), [{"x": x}])
    same(stats, {"x": [x], "square": [x * x], "y": [np.argmax(x * x, axis=1)[:, None]]}, rel=1e-6)


@MODES
def test_an_empty_tensor_has_no_extremes_and_one_that_is_always_empty_no_state(histogram: bool) -> None:
    proto = model(
        [
            node("Relu", ["x"], ["h"]),
            node("Slice", ["h", "zero", "zero"], ["none"]),
            node("Neg", ["h"], ["y"]),
        ],
        [tensor("x", ["n", 3])],
        [tensor("y", None), tensor("none", None)],
        {"zero": np.int64([0])},
    )
    data = [{"x": rows(n, 3, seed=n)} for n in (2, 0, 1)]
    stats = collect(graphs.normal(proto), needs(["x", "h", "none"], histogram), data)
    assert "none" not in stats
    state = stats["h"]
    assert isinstance(state, SampleExtremesState | HistogramState)
    assert list(state.extremes.records["index"]) == [0, 2]
    same(stats, {"x": [sample["x"] for sample in data]})


@MODES
def test_scalars_are_observed(histogram: bool) -> None:
    proto = model(
        [node("ReduceMax", ["x"], ["m"], keepdims=0), node("Neg", ["m"], ["y"])],
        [tensor("x", [3])],
        [tensor("y", [])],
    )
    stats = collect(graphs.normal(proto), needs(["m", "y"], histogram), [{"x": np.float32([1, 5, 2])}])
    same(stats, {"m": [np.float32([5])], "y": [np.float32([-5])]})


@MODES
@pytest.mark.parametrize("place", [0, 1, 77, 4095])
def test_nan_is_an_error_that_names_tensor_and_sample(histogram: bool, place: int) -> None:
    proto = model(
        [node("Sqrt", ["x"], ["root"]), node("Max", ["root", "zero"], ["y"])],
        [tensor("x", [4096])],
        [tensor("y", None)],
        {"zero": np.float32([0])},
    )
    bad = np.ones(4096, np.float32)
    bad[place] = -1
    data = [{"x": np.ones(4096, np.float32)}, {"x": bad}]
    with pytest.raises(DataError, match=r"'root' has NaN .* sample 1 "):
        collect(graphs.normal(proto), needs(["root"], histogram), data)


@MODES
def test_infinities_of_both_signs_are_noted_and_are_no_error(histogram: bool) -> None:
    proto = model(
        [node("Div", ["x", "zero"], ["y"])],
        [tensor("x", [2])],
        [tensor("y", None)],
        {"zero": np.float32([0])},
    )
    stats = collect(graphs.normal(proto), needs(["x", "y"], histogram), [{"x": np.float32([1, -1])}])
    assert stats["y"].non_finite
    assert not stats["x"].non_finite


@MODES
def test_branches_are_observed_where_they_are_taken(histogram: bool) -> None:
    found = graphs.normal(builders.two_branches())
    data = [{"x": rows(3, seed=i), "cond": np.bool_(i == 1)} for i in range(3)]
    inside = [v.name or "" for n in found.graph.all_nodes() if n.graph is not found.graph for v in n.outputs]
    stats = collect(found, needs(["h", *inside], histogram), data)
    h = [np.maximum(sample["x"], 0) for sample in data]
    none = np.empty(0, np.float32)
    op = {n.outputs[0].name: n.op_type for n in found.graph.all_nodes()}
    for name in inside:
        if op[name] == "Mul":
            same(stats, {name: [none, h[1] * 2, none]})
        elif op[name] == "Sub":
            same(stats, {name: [h[0] - 2, none, h[2] - 2]})
    never = collect(found, needs(inside, histogram), data[:1])
    assert sorted(never) == sorted(name for name in inside if name in never)
    assert len(never) == len(inside) // 2


def loop_values(x: Array, n: int, step: Any) -> dict[str, Array]:
    """The values of all turns together."""
    seen: dict[str, list[Array]] = {}
    state = x
    for i in range(n):
        named, state = step(i, state)
        for name, value in named.items():
            seen.setdefault(name, []).append(value)
    return {name: np.concatenate(values) for name, values in seen.items()}


def plain_step(i: int, state: Array) -> tuple[dict[str, Array], Array]:
    scaled = state * np.float32(1.5)
    less = scaled - np.float32(1)
    after = np.maximum(less, 0)
    return {"state": state, "scaled": scaled, "less": less, "next": after}, after


def growing_step(i: int, state: Array) -> tuple[dict[str, Array], Array]:
    named, _ = plain_step(i, state)
    after = np.append(named["less"], np.float32(9))
    return {**named, "next": after}, after


def branching_step(i: int, state: Array) -> tuple[dict[str, Array], Array]:
    named, cut = plain_step(i, state)
    if i % 2:
        return {**named, "turned": -named["less"], "next": -named["less"]}, -named["less"]
    return {**named, "cut": cut}, cut


@MODES
@pytest.mark.parametrize(
    ("options", "step"),
    [({}, plain_step), ({"grows": True}, growing_step), ({"branch": True}, branching_step)],
    ids=["plain", "growing", "branching"],
)
def test_loops_are_observed_turn_by_turn(histogram: bool, options: dict[str, bool], step: Any) -> None:
    found = graphs.normal(graphs.loop(**options))
    data = [{"x": rows(4, seed=i, scale=3), "n": np.int64(n)} for i, n in enumerate((3, 0, 1, 6))]
    runs = [loop_values(sample["x"], int(sample["n"]), step) for sample in data]
    names = {name for run in runs for name in run}
    none = np.empty(0, np.float32)
    stats = collect(found, needs([*names, "y", "sums"], histogram), data)
    same(stats, {name: [run.get(name, none) for run in runs] for name in names})
    same(stats, graphs.fetch(found, ["y"], data))


def test_values_of_static_shape_in_a_loop_are_collected() -> None:
    proto = graphs.loop()
    body = proto.graph.node[0].attribute[0].g
    body.value_info.append(tensor("less", [4]))
    data = [{"x": rows(4, seed=i), "n": np.int64(n)} for i, n in enumerate((3, 0, 1))]
    runs = [loop_values(sample["x"], int(sample["n"]), plain_step) for sample in data]
    none = np.empty(0, np.float32)
    stats = collect(graphs.normal(proto), needs(["less"], True), data)
    same(stats, {"less": [run.get("less", none) for run in runs]})


@MODES
@pytest.mark.parametrize("branch", [False, True])
def test_scans_are_observed_row_by_row(histogram: bool, branch: bool) -> None:
    found = graphs.normal(graphs.scan(branch=branch))
    data = [{"start": rows(3, seed=9 + i), "x": rows(1 + 2 * i, 3, seed=i)} for i in range(3)]
    stats = collect(found, needs(["next", "twice", "y", *(["turned"] if branch else [])], histogram), data)
    totals = [sample["start"] + np.cumsum(sample["x"], axis=0) for sample in data]
    same(stats, {"next": totals, "twice": [2 * t for t in totals]})
    if branch:
        turned = [-2 * t[t.sum(axis=1) > 0] for t in totals]
        assert isinstance(stats["turned"], SampleExtremesState)
        same(stats, {"turned": turned})


@MODES
def test_nested_subgraphs_are_observed(histogram: bool) -> None:
    found = graphs.normal(graphs.nested())
    data = [
        {"x": rows(4, seed=i, scale=3), "n": np.int64(n), "run": np.bool_(run)}
        for i, (n, run) in enumerate([(3, True), (2, False), (1, True)])
    ]
    none: dict[str, Array] = {}
    runs = [loop_values(d["x"], int(d["n"]), branching_step) if d["run"] else none for d in data]
    names = ["state", "scaled", "less", "turned", "cut", "next"]
    stats = collect(found, needs([*names, "z"], histogram), data)
    empty = np.empty(0, np.float32)
    same(stats, {name: [run.get(name, empty) for run in runs] for name in names})
    same(stats, graphs.fetch(found, ["z"], data))


def test_both_kinds_of_needs_are_served_by_one_pass() -> None:
    found = graphs.normal(builders.conv_net())
    reads = 0

    def data() -> Any:
        nonlocal reads
        for i in range(3):
            reads += 1
            yield {"x": rows(1, 3, 8, 8, seed=i)}

    stats = collect(found, {"relu": Request(Histogram()), "y": Request()}, data())
    assert reads == 3
    assert (stats["relu"].kind, stats["y"].kind) == ("histogram", "extremes")


def test_the_model_is_not_changed() -> None:
    found = graphs.normal(graphs.nested())
    before = fingerprint(found)
    data = [{"x": rows(4), "n": np.int64(2), "run": np.bool_(True)}]
    collect(found, needs(["state", "turned", "z"], True), data)
    assert fingerprint(found) == before


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18, 20, 21])
def test_any_opset(opset: int) -> None:
    found = graphs.normal(builders.conv_net(opset=opset))
    data = [{"x": rows(2, 3, 8, 8)}]
    same(
        collect(found, needs(["relu", "y"], False), data), graphs.fetch(found, ["relu", "y"], data), rel=1e-4
    )


def test_portions_of_the_data_merge_to_the_same_bits() -> None:
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(1, 3, 8, 8, seed=i, scale=1 + i)} for i in range(6)]
    wanted = {"relu": Request(Histogram()), "y": Request()}
    whole = collect(found, wanted, data, threads=1)
    first = collect(found, wanted, data[:2], threads=1)
    rest = collect(found, wanted, data[2:], threads=1, first=2)
    assert first.merge(rest).to_bytes() == rest.merge(first).to_bytes() == whole.to_bytes()


def test_nodes_that_no_need_depends_on_are_not_run() -> None:
    proto = model(
        [
            node("Relu", ["x"], ["h"]),
            node("Reshape", ["h", "wrong"], ["y"]),  # would fail
        ],
        [tensor("x", ["n"])],
        [tensor("y", None)],
        {"wrong": np.int64([7])},
    )
    assert collect(graphs.normal(proto), needs(["h"], False), [{"x": rows(3)}])["h"].count == 1


def test_names_like_those_of_the_observers_do_no_harm() -> None:
    proto = model(
        [node("Relu", ["octavo/1/x"], ["octavo/2/x/low"], "octavo/3")],
        [tensor("octavo/1/x", [3])],
        [tensor("octavo/2/x/low", None)],
    )
    stats = collect(
        graphs.normal(proto), needs(["octavo/2/x/low"], False), [{"octavo/1/x": np.float32([1, 2, 3])}]
    )
    assert (stats["octavo/2/x/low"].low, stats["octavo/2/x/low"].high) == (1, 3)


def test_an_unknown_tensor_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"'rleu'.*did you mean 'relu'"):
        collect(graphs.normal(builders.conv_net()), needs(["rleu"], False), [])


def test_no_needs_read_no_data() -> None:
    assert len(collect(graphs.normal(builders.conv_net()), {}, iter(()))) == 0


def test_progress_and_limit() -> None:
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(1, 3, 8, 8)}] * 5
    seen: list[tuple[int, int | None]] = []
    stats = collect(found, needs(["y"], False), data, limit=3, progress=lambda *a: seen.append(a))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert stats.samples == 3
    seen.clear()
    collect(found, needs(["y"], False), iter(data), progress=lambda *a: seen.append(a))
    assert seen[-1] == (5, None)


def test_feeds_can_be_given_as_they_are() -> None:
    found = graphs.normal(builders.conv_net())
    from octavo.model.runtime.session import Session

    feeds = Feeds([{"x": rows(1, 3, 8, 8)}] * 2, Session.open(found).inputs)
    assert collect(found, needs(["y"], False), feeds).samples == 2
    assert collect(found, needs(["y"], False), feeds, limit=1).samples == 1


def test_a_model_too_large_for_protobuf_goes_through_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("octavo.model.runtime.session_inputs._INLINE_MOST", 1000)
    monkeypatch.setattr("octavo.model.runtime.session_inputs._REFER_LEAST", 0)
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(2, 3, 8, 8)}]
    same(collect(found, needs(["relu"], False), data), graphs.fetch(found, ["relu"], data), rel=1e-4)


def test_weights_in_a_file_are_not_copied(tmp_path: Path) -> None:
    weight = np.ones((512, 512), np.float32)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], [tensor("x", [1, 512])], [tensor("y", None)], {"w": weight}
    )
    onnx.save(proto, tmp_path / "m.onnx")
    loaded = io.load(tmp_path / "m.onnx")
    stats = collect(loaded, needs(["y"], False), [{"x": np.ones((1, 512), np.float32)}])
    assert stats["y"].high == 512


def test_reductions_stand_right_behind_what_they_reduce() -> None:
    from octavo.calibration.observe.augment import augment
    from octavo.model.files.serialize import skeleton

    found = graphs.normal(builders.chain(300))
    proto = skeleton(found)
    asked = augment(proto, observations_of(found, needs([f"t{i}" for i in range(300)], False)))
    assert len(asked.packs) <= 64 < len(asked.numbers)
    made = {name: at for at, entry in enumerate(proto.graph.node) for name in entry.output}
    for at, entry in enumerate(proto.graph.node):
        if entry.op_type.startswith("Reduce"):
            assert at - made[entry.input[0]] <= 3


@MODES
def test_few_samples_of_a_large_graph_are_fetched_together_and_give_the_same(histogram: bool) -> None:
    proto = builders.chain(300)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    found = graphs.normal(onnx.shape_inference.infer_shapes(proto))
    data = [{"x": rows(2, 4, seed=i)} for i in range(2)]
    wanted = {**needs([f"t{i}" for i in range(200)], False), **needs(["x", "t299"], histogram)}
    with Collector(found, wanted, few_samples=True) as quick, Collector(found, wanted) as slow:
        assert quick.collect(data).to_bytes() == slow.collect(data).to_bytes()
        bad = [data[0], {"x": np.full((2, 4), np.nan, np.float32)}]
        with pytest.raises(DataError, match=r"NaN .* sample 1 "):
            quick.collect(bad)


def test_a_stride_counts_some_values_and_keeps_exact_extremes() -> None:
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(1, 3, 8, 8, seed=i, scale=1 + i)} for i in range(4)]
    names = every_float(found)
    whole = collect(found, needs(names, True), data)
    some = collect(found, needs(names, True), data, stride=5)
    for name in names:
        full, part = whole[name], some[name]
        assert isinstance(full, HistogramState)
        assert isinstance(part, HistogramState)
        assert part.extremes.to_bytes() == full.extremes.to_bytes()
        assert part.exponent == full.exponent
        sizes = [a.size for a in graphs.fetch(found, [name], data)[name]]
        assert part.total == sum(-(-size // 5) for size in sizes)
    with pytest.raises(RecipeError, match="stride of 0"):
        collect(found, needs(names, True), data, stride=0)


def test_every_kind_of_observation_in_one_pass() -> None:
    found = graphs.normal(builders.conv_net())
    data = [{"x": rows(1, 3, 8, 8, seed=i)} for i in range(3)]
    wanted = {
        "relu": Request(Histogram(), channels=1, moments=True),
        "pool": Request(gram=True),
        "y": Request(),
    }
    stats = collect(found, wanted, data, threads=1)
    relu = np.concatenate(graphs.fetch(found, ["relu"], data)["relu"]).astype(np.float64)
    state = stats["relu"]
    assert isinstance(state, CombinedState)
    channels, moments = state.parts["channels"], state.parts["moments"]
    assert isinstance(channels, ChannelState)
    assert isinstance(moments, MomentsState)
    np.testing.assert_allclose(channels.absolute, np.abs(relu).max(axis=(0, 2, 3)), rtol=1e-5)
    assert (moments.mean, moments.variance) == pytest.approx((relu.mean(), relu.var()), rel=1e-5)
    gram = stats["pool"]
    assert isinstance(gram, CombinedState)
    assert load_stats(stats.to_bytes()).to_bytes() == stats.to_bytes()
    first = collect(found, wanted, data[:1], threads=1)
    rest = collect(found, wanted, data[1:], threads=1, first=1)
    assert rest.merge(first).to_bytes() == stats.to_bytes()


def test_channels_inside_a_subgraph_are_refused() -> None:
    found = graphs.normal(builders.two_branches())
    inside = next(
        v.name or "" for n in found.graph.all_nodes() if n.graph is not found.graph for v in n.outputs
    )
    with pytest.raises(ModelError, match="inside a subgraph"):
        collect(found, {inside: Request(channels=0)}, [{"x": rows(3), "cond": np.bool_(True)}])


def test_nan_after_an_overflow_is_found_where_no_operator_makes_nan() -> None:
    proto = model(
        [
            node("Mul", ["x", "huge"], ["large"]),
            node("Mul", ["large", "huge"], ["endless"]),
            node("Sub", ["endless", "endless"], ["y"]),
        ],
        [tensor("x", [64])],
        [tensor("y", None)],
        {"huge": np.float32([1e30])},
    )
    data = [{"x": np.zeros(64, np.float32)}, {"x": np.eye(1, 64, 9, dtype=np.float32)[0]}]
    with pytest.raises(DataError, match=r"'y' has NaN .* sample 1 "):
        collect(graphs.normal(proto), needs(["large", "y"], False), data)


def test_batch_sizes_1_8_and_32_give_identical_thresholds() -> None:
    found = graphs.normal(builders.conv_net())
    images = rows(32, 3, 8, 8, seed=3)
    scheme = Scheme(UINT8)
    read_by = [MinMax(), Percentile(99.9), Entropy(), MSE(), Distribution(), Auto()]
    results = []
    for size in (1, 8, 32):
        data = [{"x": images[at : at + size]} for at in range(0, 32, size)]
        stats = collect(found, {"x": Request(Histogram()), "relu": Request(Histogram())}, data, threads=1)
        results.append([read(stats[name], scheme.but(method=m)) for name in ("x", "relu") for m in read_by])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("opset", [9, 13, 21])
@pytest.mark.parametrize("lowest", [-1.0, 0.0, 0.25], ids=["zeros", "at zero", "above zero"])
def test_maps_of_a_relu_have_their_exact_extremes(opset: int, lowest: float) -> None:
    proto = model(
        [node("Relu", ["x"], ["h"]), node("Conv", ["h", "w"], ["c"]), node("Relu", ["c"], ["y"])],
        [tensor("x", ["n", 3, 20, 15])],
        [tensor("y", None)],
        {"w": rows(16, 3, 3, 3, seed=5)},
        opset=opset,
    )
    found = graphs.normal(onnx.shape_inference.infer_shapes(proto))
    data = [{"x": np.maximum(rows(1 + i, 3, 20, 15, seed=i), np.float32(lowest))} for i in range(3)]
    wanted = needs(["h", "c", "y"], False)
    stats = collect(found, wanted, data, threads=1)
    values = graphs.fetch(found, ["h"], data)
    same(stats, values, rel=0)
    same(stats, graphs.fetch(found, ["c", "y"], data), rel=1e-4)
    parts = [collect(found, wanted, [sample], threads=1, first=i) for i, sample in enumerate(data)]
    assert parts[2].merge(parts[0]).merge(parts[1]).to_bytes() == stats.to_bytes()


def test_a_map_with_a_single_value_off_the_sample_has_its_exact_minimum() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [tensor("x", [1, 2, 8, 8])], [tensor("y", [1, 2, 8, 8])])
    x = np.ones((1, 2, 8, 8), np.float32)
    x[0, 1, 3, 4] = 0.5
    stats = collect(graphs.normal(proto), needs(["y"], False), [{"x": x}] * 2)
    assert (stats["y"].low, stats["y"].high) == (0.5, 1)


def test_only_the_map_whose_sample_tells_nothing_is_looked_at_closer() -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Relu", ["z"], ["b"]), node("Add", ["a", "b"], ["y"])]
    shape = ["n", 16, 8, 8]
    proto = model(nodes, [tensor("x", shape), tensor("z", shape)], [tensor("y", shape)])
    found = graphs.normal(onnx.shape_inference.infer_shapes(proto))
    x = np.ones((1, 16, 8, 8), np.float32)
    x[0, 3, 5, 5] = 0.25
    with Collector(found, needs(["a", "b"], False), threads=1) as collector:
        stats = collector.collect([{"x": x, "z": rows(1, 16, 8, 8)}, {"x": x - 1, "z": rows(1, 16, 8, 8)}])
        how = {name: type(one.extremes) for name, one in collector._for_some._observations.items()}
        assert how == {"a": Reduced, "b": NonNegativeMap}
    assert (stats["a"].low, stats["a"].high, stats["b"].low) == (0, 1, 0)


def test_maps_of_different_numbers_of_images_are_told_apart() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Reshape", ["a", "shape"], ["halves"]),
        node("Relu", ["halves"], ["y"]),
    ]
    constants = {"shape": np.array([-1, 16, 8, 8], np.int64)}
    proto = model(nodes, [tensor("x", ["n", 32, 8, 8])], [tensor("y", [None, 16, 8, 8])], constants)
    found = graphs.normal(onnx.shape_inference.infer_shapes(proto))
    data = [{"x": rows(n, 32, 8, 8, seed=n)} for n in (1, 2)]
    stats = optimized(found, needs(["a", "y"], False), data)
    same(stats, graphs.fetch(found, ["a", "y"], data), rel=0)


def test_an_empty_batch_of_maps_has_no_extremes() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [tensor("x", ["n", 2, 8, 8])], [tensor("y", ["n", 2, 8, 8])])
    data = [{"x": rows(n, 2, 8, 8)} for n in (1, 0)]
    assert collect(graphs.normal(proto), needs(["y"], False), data)["y"].count == 1


def optimized(
    found: ir.Model, wanted: dict[str, Request], data: list[dict[str, Array]], first: int = 0
) -> Stats:
    """What a session with the runtime's optimizations notes, however few the samples are."""
    with Collector(found, wanted, threads=1) as collector:
        return collector.collect(data, first)


def residual(channels: int = 16, opset: int = 13) -> ir.Model:
    """Two sums: of a convolution with what it reads, and of two convolutions; each with a Relu."""
    proto = model(
        [
            node("Conv", ["x", "w1"], ["left"], pads=[1, 1, 1, 1]),
            node("Add", ["left", "x"], ["sum"]),
            node("Relu", ["sum"], ["h"]),
            node("Conv", ["h", "w2"], ["one"], pads=[1, 1, 1, 1]),
            node("Conv", ["h", "w3"], ["other"]),
            node("Add", ["other", "one"], ["both"]),
            node("Relu", ["both"], ["y"]),
        ],
        [tensor("x", ["n", channels, 9, 7])],
        [tensor("y", None)],
        {
            "w1": rows(channels, channels, 3, 3, seed=1, scale=0.1),
            "w2": rows(channels, channels, 3, 3, seed=2, scale=0.1),
            "w3": rows(channels, channels, 1, 1, seed=3, scale=0.1),
        },
        opset=opset,
    )
    return graphs.normal(onnx.shape_inference.infer_shapes(proto))


@MODES
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("channels", [16, 12])
def test_convolutions_before_a_residual_sum_are_observed_as_they_are(
    histogram: bool, machine: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    found = residual(channels)
    names = ["left", "h", "one", "other", "y"]
    data = [{"x": rows(n, channels, 9, 7, seed=n, scale=n)} for n in (1, 3, 2)]
    stats = optimized(found, needs(names, histogram), data)
    same(stats, graphs.fetch(found, names, data), rel=1e-4)
    parts = [optimized(found, needs(names, histogram), [s], first=i) for i, s in enumerate(data)]
    assert parts[1].merge(parts[2]).merge(parts[0]).to_bytes() == stats.to_bytes()


@pytest.mark.parametrize("opset", [9, 13, 21])
def test_blocked_maps_have_the_extremes_of_their_values(opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    found = residual(opset=opset)
    data = [{"x": rows(n, 16, 9, 7, seed=n)} for n in (2, 1)]
    names = ["left", "one", "other"]
    inside = optimized(found, needs(names, False), data)
    fetched = optimized(found, needs(names, True), data)
    for name in names:
        assert (inside[name].low, inside[name].high) == (fetched[name].low, fetched[name].high)


def test_an_empty_batch_of_blocked_maps_has_no_extremes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    data = [{"x": rows(n, 16, 9, 7)} for n in (1, 0, 2)]
    stats = optimized(residual(), needs(["left", "one", "other"], False), data)
    assert [stats[name].count for name in stats] == [2, 2, 2]


def test_an_overflow_in_a_blocked_map_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    data = [{"x": np.full((1, 16, 9, 7), value, np.float32)} for value in (1.0, 3e38)]
    stats = optimized(residual(), needs(["left"], False), data)
    assert stats["left"].non_finite
