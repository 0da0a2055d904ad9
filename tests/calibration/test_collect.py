"""Collecting: what is noted is what the tensors were, in every kind of graph."""

from __future__ import annotations

import contextlib
import time
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

from octavo.calibration import Feeds, collect
from octavo.calibration.observers import HistogramState, MinMaxState
from octavo.calibration.run import _open, _wanted
from octavo.core.stats import Need, Stats
from octavo.errors import DataError, ModelError
from octavo.model import io
from octavo.model.fingerprint import fingerprint

from . import graphs

Array = npt.NDArray[Any]
MODES = pytest.mark.parametrize("histogram", [False, True], ids=["extremes", "histogram"])


def rows(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def every_float(found: ir.Model) -> list[str]:
    names = [value.name or "" for value in found.graph.inputs if value.dtype == ir.DataType.FLOAT]
    return names + [value.name or "" for n in found.graph for value in n.outputs]


def needs(names: list[str], histogram: bool) -> dict[str, Need]:
    return {name: Need(histogram=histogram) for name in names}


def same(stats: Stats, values: dict[str, list[Array]], *, rel: float = 1e-5) -> None:
    """Extremes of every sample are those of the values; a histogram has counted each value."""
    for name, arrays in values.items():
        expected = {i: (float(a.min()), float(a.max())) for i, a in enumerate(arrays) if a.size}
        state = stats[name]
        assert isinstance(state, MinMaxState | HistogramState)
        found = state.extremes.batches
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
    assert isinstance(state, MinMaxState | HistogramState)
    assert list(state.extremes.batches) == [0, 2]
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
        assert isinstance(stats["turned"], MinMaxState)
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

    stats = collect(found, {"relu": Need(histogram=True), "y": Need()}, data())
    assert reads == 3
    assert (stats["relu"].kind, stats["y"].kind) == ("histogram", "minmax")


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
    wanted = {"relu": Need(histogram=True), "y": Need()}
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
    from octavo.model.session import Session

    feeds = Feeds([{"x": rows(1, 3, 8, 8)}] * 2, Session.open(found).inputs)
    assert collect(found, needs(["y"], False), feeds).samples == 2
    assert collect(found, needs(["y"], False), feeds, limit=1).samples == 1


def test_a_model_too_large_for_protobuf_goes_through_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("octavo.calibration.run._INLINE_MOST", 10)
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


def test_augmentation_is_linear_in_the_nodes() -> None:
    def seconds(length: int) -> float:
        from octavo.calibration.augment import augment
        from octavo.model.serialize import skeleton

        found = graphs.normal(builders.chain(length))
        wanted = _wanted(found, needs([f"t{i}" for i in range(length)], False))
        proto = skeleton(found)
        start = time.process_time()
        augment(proto, wanted)
        return time.process_time() - start

    seconds(100)
    small, large = min(seconds(500) for _ in range(3)), min(seconds(4000) for _ in range(2))
    assert large < 8 * small * 3


def test_a_long_chain_is_loaded_in_reasonable_time() -> None:
    found = graphs.normal(builders.chain(1000))
    wanted = _wanted(found, needs([f"t{i}" for i in range(1000)], False))
    start = time.process_time()
    with contextlib.ExitStack() as files:
        _open(found, wanted, files, threads=1)
    assert time.process_time() - start < 3.0
