"""Measuring: the figures are there, of the right things; no test asserts on time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor

import octavo
from evaluation.made import save
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.timing import latency
from octavo.evaluation.timing.profiler import NodeTime, unfused
from octavo.reporting import figures

FEEDS = [{"x": np.random.default_rng(i).standard_normal((1, 3, 8, 8)).astype(np.float32)} for i in range(8)]


@pytest.fixture
def both(tmp_path: Path) -> tuple[Path, Path]:
    path = save(conv_net(), tmp_path / "float.onnx")
    octavo.quantize(path, FEEDS, output=tmp_path / "int8.onnx", effort="plain")
    return path, tmp_path / "int8.onnx"


def test_calls_take_turns_in_an_order_that_rotates() -> None:
    called: list[int] = []
    ticks = iter(range(1_000_000))

    def clock() -> float:
        return next(ticks) * 1.0

    calls = [lambda i=i: called.append(i) for i in range(3)]
    taken = latency.interleaved(calls, seconds=1e-9, clock=clock)
    assert taken.shape == (3, latency.MIN_ROUNDS)
    assert called[-9:] in (
        [0, 1, 2, 1, 2, 0, 2, 0, 1],
        [1, 2, 0, 2, 0, 1, 0, 1, 2],
        [2, 0, 1, 0, 1, 2, 1, 2, 0],
    )


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    first = np.array([2.0, 4.0, 6.0, 8.0, 10.0])
    found = latency.ratio(first, np.array([1.0, 2.0, 2.0, 4.0, 5.0]))
    assert found.value == 2.0
    assert found.low <= 2.0 <= found.high


def test_rounds_end_as_soon_as_the_interval_tells() -> None:
    ticks = iter(range(1_000_000))
    taken = latency.interleaved(
        [lambda: None] * 2, seconds=60, clock=lambda: next(ticks) * 1.0, precision=0.01
    )
    assert taken.shape == (2, latency.MIN_ROUNDS)


@pytest.mark.parametrize("enough", [True, False])
def test_rounds_end_as_soon_as_what_was_measured_is_enough(enough: bool) -> None:
    steps = iter(np.random.default_rng(0).uniform(0.5, 1.5, 1_000_000))
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += float(next(steps))
        return now

    calls = [lambda: None] * 2
    taken = latency.interleaved(
        calls, seconds=60, clock=clock, precision=1e-6, is_enough=lambda found: enough and found.shape[1] > 9
    )
    assert taken.shape[1] == (13 if enough else latency.MAX_ROUNDS)


def test_speeds_differ_where_their_intervals_do_not_explain_it() -> None:
    steady = latency.Ratio(1.5, 1.48, 1.52)
    assert steady.differs_from(latency.Ratio(1.6, 1.58, 1.62))
    assert not steady.differs_from(latency.Ratio(1.6, 1.3, 1.9))


def test_an_interval_that_says_nothing_is_not_printed() -> None:
    wide = latency.Ratio(4.2, 1.03, 22.13)
    assert not wide.is_known
    assert "22" not in figures.speed_text(asdict(wide))
    assert figures.speed_text(asdict(latency.Ratio(1.5, 1.48, 1.52))) == "1.50 × (1.48 … 1.52)"


def test_two_models_are_measured_side_by_side(both: tuple[Path, Path]) -> None:
    result = octavo.bench(*both, FEEDS, seconds=0.05, threads=1, batch=4)
    assert result.ratio is not None and result.ratio.low <= result.ratio.value <= result.ratio.high
    assert (result.batch, result.threads) == (4, 1)
    for one, path in zip(result.models, both, strict=True):
        assert one.file_bytes == path.stat().st_size
        assert one.latency.low <= one.latency.median <= one.latency.high
        assert one.load_seconds is not None and one.load_seconds > 0
        assert one.memory_bytes is not None and one.memory_bytes >= 0
        assert one.ops
    assert "Conv" in {op.op_type for op in result.models[0].ops} | {"FusedConv"}
    assert any(op.op_type.startswith("QLinear") for op in result.models[1].ops)
    data = result.to_dict()
    assert json.loads(json.dumps(data)) == data
    text = str(result)
    assert "× as fast" in text
    assert "QLinearConv" in text


def test_one_model_alone_and_without_the_slow_parts(both: tuple[Path, Path]) -> None:
    result = octavo.bench(both[0], seconds=0.01, profile=False, memory=False, clock="cpu")
    assert (result.ratio, result.models[0].ops, result.models[0].memory_bytes) == (None, (), None)
    assert "random samples" in str(result)


def test_external_weights_count_as_part_of_the_file(tmp_path: Path) -> None:
    proto = conv_net()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    result = octavo.bench(path, seconds=0.01, profile=False, memory=False)
    assert result.models[0].file_bytes == path.stat().st_size + (tmp_path / "m.bin").stat().st_size


def test_an_open_size_is_tried_until_the_model_runs(tmp_path: Path) -> None:
    weights = np.zeros((1, 3, 1, 101), np.float32)
    picky = model(
        [node("Conv", ["x", "w"], ["y"])],
        [tensor("x", ["N", 3, "H", "W"])],
        [tensor("y", ["N", 1, "h", "w2"])],
        {"w": weights},
    )
    result = octavo.bench(
        save(picky, tmp_path / "m.onnx"), seconds=0.01, profile=False, memory=False, batch=2
    )
    assert result.batch == 2


def lonely_tanh() -> onnx.ModelProto:
    """Tanh between DequantizeLinear and QuantizeLinear, for which the runtime has no integer kernel."""
    arrays: dict[str, Any] = {"s": np.float32(0.02), "z": np.uint8(128)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q0"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "dq0"),
        node("Tanh", ["xd"], ["t"], "lonely"),
        node("QuantizeLinear", ["t", "s", "z"], ["tq"], "q1"),
        node("DequantizeLinear", ["tq", "s", "z"], ["y"], "dq1"),
    ]
    return model(nodes, [tensor("x", ["N", 64])], [tensor("y", ["N", 64])], arrays)


def test_what_did_not_fuse_is_named_with_its_cost(tmp_path: Path) -> None:
    result = octavo.bench(save(lonely_tanh(), tmp_path / "m.onnx"), seconds=0.01, memory=False)
    (found,) = result.models[0].unfused
    assert (found.node, found.op_type) == ("lonely", "Tanh")
    assert "1 float operator fed by DequantizeLinear" in str(result)


def test_the_cost_is_the_operators_and_its_share_of_conversions() -> None:
    graph = lonely_tanh().graph
    times = [
        NodeTime(n, "", t)
        for n, t in (("q0", 1.0), ("dq0", 2.0), ("lonely", 4.0), ("q1", 8.0), ("dq1", 16.0))
    ]
    (found,) = unfused(graph, times)
    assert (found.seconds, found.conversion_seconds, found.cost) == (4.0, 10.0, 14.0)
    graph.node.append(node("Abs", ["xd"], ["other"], "second"))
    assert [(one.node, one.conversion_seconds) for one in unfused(graph, times)] == [
        ("lonely", 9.0),
        ("second", 1.0),
    ]


def test_wrong_requests_are_told(both: tuple[Path, Path], tmp_path: Path) -> None:
    fixed = model([node("Relu", ["x"], ["y"])], [tensor("x", [2, 4])], [tensor("y", [2, 4])])
    path = save(fixed, tmp_path / "fixed.onnx")
    with pytest.raises(DataError, match="batches of 2 only"):
        octavo.bench(path, batch=3)
    with pytest.raises(ModelError, match="the same inputs"):
        octavo.bench(both[0], path)
    with pytest.raises(RecipeError, match="no clock 'sun'"):
        octavo.bench(path, clock="sun")
    with pytest.raises(RecipeError, match="above zero"):
        octavo.bench(path, seconds=0)
    with pytest.raises(ModelError, match="There is no model"):
        octavo.bench(tmp_path / "no.onnx")
    with pytest.raises(DataError, match="takes shape"):
        octavo.bench(path, data=[{"x": np.zeros((3, 4), np.float32)}])


def test_language_models_are_timed_with_the_cache_of_a_prompt(tmp_path: Path) -> None:
    from decoders import HEADS, LAYERS, SIZE, primitive_decoder

    octavo.quantize(primitive_decoder(), weights="int4", output=tmp_path / "q.onnx")
    result = octavo.bench(primitive_decoder(), tmp_path / "q.onnx", seconds=0.1, profile=False, memory=False)
    first, second = (one.decoding for one in result.models)
    assert first is not None and second is not None
    assert first.prompt == second.prompt == 64
    assert first.cache_bytes == second.cache_bytes == 2 * LAYERS * HEADS * 65 * SIZE * 4
    assert first.token_ratio is None and second.token_ratio is not None
    assert "written tokens/s" in str(result) and "cache (65 tokens)" in str(result)
    assert result.to_dict()["models"][1]["decoding"]["prefill"]["median"] > 0


def test_models_with_inputs_of_other_float_types_are_compared(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((16, 4)).astype(np.float32)
    source = model(
        [node("MatMul", ["x", "w"], ["y"])], [tensor("x", ["n", 16])], [tensor("y", ["n", 4])], {"w": weight}
    )
    path, half = save(source, tmp_path / "float.onnx"), tmp_path / "half.onnx"
    octavo.quantize(path, float_type="fp16:compute", io="fp16", output=half)
    images = rng.standard_normal((20, 16)).astype(np.float32)
    labels = (images @ weight).argmax(1)
    found = octavo.bench(path, half, [{"x": images}], seconds=0.01, clock="cpu")
    assert found.ratio is not None
    np.savez(tmp_path / "data.npz", x=images, labels=labels)
    result = octavo.evaluate(half, tmp_path / "data.npz", against=path)
    assert result["top1"] == pytest.approx(1.0, abs=0.06)
