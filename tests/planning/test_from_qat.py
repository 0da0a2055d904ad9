"""Models trained with fake quantization keep their numbers when they are turned into integers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import qat_graphs as graphs
from onnx import TensorProto, helper, numpy_helper
from qat_graphs import Builder
from quantizing import Feeds, run

import octavo
from octavo.cli.main import main
from octavo.core.plan import Fixed, Key, Plan, Shared
from octavo.errors import ModelError, RecipeError
from octavo.model.files import io

STYLES = ("qdq", "qoperator", "integer")


def samples(proto: onnx.ModelProto, count: int = 3) -> list[Feeds]:
    dims = [d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim]
    return [
        {"x": (np.random.default_rng(seed).standard_normal(dims) * 1.5).astype(np.float32)}
        for seed in range(count)
    ]


def steps_off(trained: onnx.ModelProto, result: octavo.Result, step: float, *, optimize: bool) -> float:
    """The largest difference to the trained model as it stands, in steps of its output."""
    worst = 0.0
    for feeds in samples(trained):
        want, got = run(trained, feeds, optimize=False), run(result, feeds, optimize=optimize)
        worst = max(worst, *(float(np.abs(got[name] - want[name]).max()) / step for name in want))
    return worst


def ops(result: octavo.Result) -> Counter[str]:
    return Counter(node.op_type for node in result.model.graph)


def arrays(result: octavo.Result) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(v.const_value.numpy())
        for name, v in result.model.graph.initializers.items()
        if v.const_value
    }


def narrow(clip: tuple[int, int] = (0, 127)) -> onnx.ModelProto:
    """Activations and weights on a part of their types, as fbgemm's training does."""
    b = Builder(4)
    x = b.fake("x", 0.05, 0, clip=clip)
    b.weight("w", 6, 3, 3, 3)
    h = b.op("Conv", [x, b.fake_weight("w", 0, clip=(-127, 127))], "c")
    b.op("Identity", [b.fake(b.op("Relu", [h], "r"), 0.03, 0, clip=clip)], "y")
    return b.model({"x": ["n", 3, 6, 6]}, {"y": ["n", 6, 4, 4]})


def sixteen() -> onnx.ModelProto:
    """16-bit activations in front, 8-bit ones behind."""
    b = Builder(5)
    x = b.fake("x", 0.0002, 32768, kind=np.uint16)
    b.weight("w", 6, 3, 3, 3)
    h = b.op("Conv", [x, b.fake_weight("w", 0)], "c")
    h = b.fake(b.op("Relu", [h], "r"), 0.0003, 0, kind=np.uint16)
    b.weight("w2", 6, 5)
    b.const("ax", np.asarray([2, 3], np.int64))
    m = b.fake(b.op("ReduceMean", [h, "ax"], "m", keepdims=0), 0.03, 0)
    b.op("MatMul", [m, b.fake_weight("w2", 1)], "mm")
    b.fake("mm", 0.02, 128, out="y")
    return b.model({"x": ["n", 3, 6, 6]}, {"y": ["n", 5]}, 21)


def views() -> onnx.ModelProto:
    """One tensor seen in two ways, in a third on top of the first, and in float."""
    b = Builder(6)
    b.weight("w", 4, 4, 1, 1)
    b.weight("w2", 4, 4, 1, 1)
    h = b.op("Conv", [b.fake("x", 0.05, 128), b.fake_weight("w")], "c")
    first, second = b.fake(h, 0.02, 100), b.fake(h, 0.04, 128)
    third = b.fake(first, 0.03, 120)
    results = [
        b.fake(b.op("Conv", [v, b.fake_weight("w2")], f"c{i}"), 0.05, 128)
        for i, v in enumerate((first, second, third))
    ]
    total = b.fake(b.op("Add", results[:2], "s"), 0.08, 128)
    total = b.op("Add", [total, b.op("Tanh", [h], "t")], "s2")
    b.op("Add", [total, results[2]], "y")
    return b.model({"x": ["n", 4, 4, 4]}, {"y": ["n", 4, 4, 4]})


def converted() -> onnx.ModelProto:
    """A pair behind another one, and the same pair twice; the last Conv has no pair on its result."""
    b = Builder(7)
    b.weight("w", 4, 4, 1, 1)
    b.weight("w2", 4, 4, 1, 1)
    x = b.fake(b.fake("x", 0.05, 128), 0.06, 120)
    h = b.fake(b.fake(b.op("Conv", [x, b.fake_weight("w")], "c"), 0.03, 128), 0.03, 128)
    b.op("Conv", [h, b.fake_weight("w2")], "y")
    return b.model({"x": ["n", 4, 4, 4]}, {"y": ["n", 4, 4, 4]})


def mixed() -> onnx.ModelProto:
    """uint8 and int8 side by side, a Concat whose result alone has parameters, a symmetric Relu."""
    b = Builder(8)
    b.weight("w", 4, 3, 1, 1)
    b.weight("w2", 4, 3, 1, 1)
    b.weight("w3", 2, 8, 1, 1)
    x = b.fake("x", 0.03, 0, kind=np.int8)
    left = b.op("Conv", [x, b.fake_weight("w", None)], "l")
    right = b.op("Relu", [b.op("Conv", [x, b.fake_weight("w2")], "r")], "rr")
    joined = b.fake(b.op("Concat", [left, right], "j", axis=1), 0.03, 0, kind=np.int8)
    b.const("two", np.float32(0.5))
    half = b.fake(b.op("Mul", [joined, "two"], "half"), 0.02, 120)
    b.fake(b.op("Conv", [half, b.fake_weight("w3")], "o"), 0.02, 128, out="y")
    return b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 2, 4, 4]})


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], float]] = {
    "torch": (graphs.torch_cnn, 0.05),
    "torch-int8": (lambda: graphs.torch_cnn(kind=np.int8), 0.05),
    "torch-per-tensor-microsoft": (lambda: graphs.torch_cnn(axis=None, domain="com.microsoft"), 0.05),
    "torch-opset13": (lambda: graphs.torch_cnn(13), 0.05),
    "tf": (graphs.tf_cnn, 0.05),
    "chain": (graphs.chain_linear, 0.11),
    "chain-floor": (lambda: graphs.chain_linear(floor=True, multiply=True), 0.11),
    "chain-clip-first": (lambda: graphs.chain_linear(clip_first=True), 0.11),
    "narrow": (narrow, 0.03),
    "sixteen": (sixteen, 0.02),
    "converted": (converted, 0.05),
    "views": (views, 0.08),
    "mixed": (mixed, 0.02),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", MODELS)
def test_integers_give_what_fake_quantization_gave(name: str, style: str) -> None:
    make, step = MODELS[name]
    trained = make()
    result = octavo.convert_qat(trained, style=style)
    off = steps_off(trained, result, step, optimize=False)
    assert off < (1e-3 if style == "qdq" else 1.01)
    assert steps_off(trained, result, step, optimize=True) < 2.01
    assert result.plan.nodes


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("variant", ["aten", "ms", "minmax", "attributes", "levels"])
def test_operators_of_other_domains_mean_the_same_as_pairs(variant: str, style: str) -> None:
    foreign, pairs = graphs.operator_conv(variant)
    result = octavo.convert_qat(foreign, style=style)
    assert steps_off(pairs, result, 0.015625, optimize=False) < 1e-3
    assert {n.domain for n in result.model.graph} <= {"", "com.microsoft"}
    assert ops(result)["FakeQuant"] == ops(result)["FakeQuantize"] == ops(result)["ATen"] == 0


def test_weights_are_the_integers_that_the_runtime_computes() -> None:
    trained = graphs.torch_cnn()
    wanted = onnx.ModelProto()
    wanted.CopyFrom(trained)
    names = [
        n.output[0]
        for n in trained.graph.node
        if n.op_type == "QuantizeLinear" and n.input[0] in ("w1", "w2", "w3")
    ]
    wanted.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.INT8, None) for name in names)
    computed = run(wanted, samples(trained)[0], optimize=False)
    stored = arrays(octavo.convert_qat(trained))
    for name in names:
        assert np.array_equal(stored[f"{name.split('_')[0]}_quantized"], computed[name])


def test_trained_parameters_are_fixed_entries() -> None:
    plan = octavo.convert_qat(graphs.torch_cnn()).plan
    entry = plan.entries[Key("r1")]
    assert isinstance(entry, Fixed)
    assert (np.float32(entry.scale[0]), entry.zero_point) == (np.float32(0.04), (0,))
    weight = plan.entries[Key("w1")]
    assert isinstance(weight, Fixed)
    assert len(weight.scale) == 8
    assert plan.entries[Key("flat")] == Shared("gap")
    assert not plan.needs()


def test_a_plan_of_a_trained_model_survives_its_file(tmp_path: Path) -> None:
    plan = octavo.convert_qat(sixteen(), style="qoperator").plan
    assert plan.rounded
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_kernels_behind_a_transpose_are_stored_as_their_reader_wants_them() -> None:
    result = octavo.convert_qat(graphs.tf_cnn())
    assert ops(result)["Transpose"] == 1  # that of the input
    params = {str(key): p for key, p in result.params.items()}
    assert [str(params[n].granularity) for n in params if n.startswith(("k1", "k2"))] == ["channel:0"] * 2


def test_converting_twice_changes_nothing() -> None:
    once = octavo.convert_qat(graphs.torch_cnn())
    twice = octavo.convert_qat(io.to_proto(once.model))
    first, second = arrays(once), arrays(twice)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert [n.op_type for n in once.model.graph] == [n.op_type for n in twice.model.graph]


@pytest.mark.parametrize("style", ["qoperator", "integer"])
def test_a_qdq_model_with_stored_integers_goes_into_other_styles(style: str) -> None:
    trained = graphs.torch_cnn()
    qdq = io.to_proto(octavo.convert_qat(trained).model)
    assert steps_off(trained, octavo.convert_qat(qdq, style=style), 0.05, optimize=True) < 1.01


def test_the_whole_type_may_be_used_instead_of_a_clip() -> None:
    exact, whole = octavo.convert_qat(narrow()), octavo.convert_qat(narrow(), exact=False)
    assert ops(exact)["Clip"] == 2
    assert ops(whole)["Clip"] == ops(whole)["Relu"] == 0
    assert "part of the integers of their type" in str(whole)


def test_ranges_that_training_left_open_are_measured_where_there_is_data() -> None:
    trained = converted()
    without = octavo.convert_qat(trained, style="qoperator")
    assert ops(without)["QLinearConv"] == 1
    assert "calibration data" in without.plan.skipped[0].reason
    result = octavo.convert_qat(trained, samples(trained), style="qoperator")
    assert ops(result)["QLinearConv"] == 2
    step = float(result.params[Key("y")].scale)
    assert steps_off(trained, result, step, optimize=True) < 3


def test_rounding_twice_is_a_conversion_and_the_same_again_is_nothing() -> None:
    trained = converted()
    result = octavo.convert_qat(trained)
    assert ops(result)["QuantizeLinear"] == 3
    assert steps_off(trained, result, 0.05, optimize=False) < 1e-3


def test_a_float_layer_among_trained_ones_is_guarded_and_stays_float() -> None:
    b = Builder(9)
    b.weight("w", 4, 3, 1, 1)
    b.weight("outlier", 4, 4, 1, 1)
    b.arrays["outlier"][0] *= 40
    h = b.fake(b.op("Conv", [b.fake("x", 0.03, 128), b.fake_weight("w")], "c"), 0.03, 128)
    b.fake(b.op("Conv", [h, "outlier"], "f"), 0.3, 128, out="y")
    trained = b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]})
    result = octavo.convert_qat(trained)
    assert [s.reason for s in result.plan.skipped] == ["its weight was trained in float"]
    assert result.plan.barriers == ("n_f",)
    assert steps_off(trained, result, 0.3, optimize=True) < 1.01


def test_scales_along_a_wrong_axis_leave_the_weight_float() -> None:
    b = Builder(10)
    b.weight("w", 6, 6)
    x = b.fake("x", 0.03, 128)
    b.fake(b.op("MatMul", [x, b.fake_weight("w", 0)], "m"), 0.05, 128, out="y")
    trained = b.model({"x": ["n", 6]}, {"y": ["n", 6]})
    with pytest.raises(ModelError, match="scales along axis 0"):
        octavo.convert_qat(trained)


def block_weights(kind: int, step: int) -> onnx.ModelProto:
    b = Builder(11)
    values = b.rng.integers(-8, 8, (64, 8))
    b.protos.append(
        graphs.stored("w_q", values if kind == TensorProto.INT4 else values.astype(np.int8), kind)
    )
    scales = b.const("w_s", b.rng.uniform(0.01, 0.1, (64 // step, 8)).astype(np.float32))
    w = b.op("DequantizeLinear", ["w_q", scales], "w", axis=0, block_size=step)
    b.op("MatMul", ["x", w], "y")
    return b.model({"x": ["n", 64]}, {"y": ["n", 8]}, 21)


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.INT8], ids=["int4", "int8"])
def test_weights_in_blocks_keep_their_scales(kind: int) -> None:
    trained = block_weights(kind, 16)
    result = octavo.convert_qat(trained)
    assert steps_off(trained, result, 1.0, optimize=False) < 1e-4
    assert len(result.params) == 1
    assert str(next(iter(result.params.values())).granularity) == "block:16:0"


def test_four_bit_weights_become_four_bits() -> None:
    b = Builder(12)
    b.weight("w", 16, 6)
    s = b.const("s", b.weight_scales("w", 1, 7).reshape(1, 6))
    lo, hi = b.const("lo", np.float32(-8)), b.const("hi", np.float32(7))
    w = b.op("Mul", [b.op("Clip", [b.op("Round", [b.op("Div", ["w", s], "d")], "r"), lo, hi], "c"), s], "fq")
    b.op("MatMul", [b.fake("x", 0.03, 128), w], "y")
    trained = b.model({"x": ["n", 16]}, {"y": ["n", 6]})
    result = octavo.convert_qat(trained)
    stored = result.model.graph.initializers["w_quantized"]
    assert stored.dtype == ir.DataType.INT4
    assert steps_off(trained, result, 1.0, optimize=False) < 1e-4


def test_a_weight_trained_alone_is_stored_as_integers_and_runs_dynamically_in_the_integer_style() -> None:
    b = Builder(13)
    b.weight("w", 16, 6)
    b.op("MatMul", ["x", b.fake_weight("w", 1)], "y")
    trained = b.model({"x": ["n", 16]}, {"y": ["n", 6]})
    assert ops(octavo.convert_qat(trained)) == {"DequantizeLinear": 1, "MatMul": 1}
    result = octavo.convert_qat(trained, style="integer")
    assert ops(result)["DynamicQuantizeLinear"] == ops(result)["MatMulInteger"] == 1
    assert steps_off(trained, result, 0.1, optimize=True) < 1.0


def test_a_reader_that_sees_a_value_both_ways_keeps_its_pair() -> None:
    b = Builder(14)
    b.weight("w", 4, 3, 1, 1)
    rounded = b.fake("x", 0.03, 128)
    h = b.op("Add", ["x", rounded], "sum")
    b.op("Conv", [b.fake(h, 0.06, 128), b.fake_weight("w")], "y")
    trained = b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]})
    result = octavo.convert_qat(trained)
    assert "stay in the model" in " ".join(result.notes)
    assert steps_off(trained, result, 0.05, optimize=False) < 1e-3


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_a_clamp_between_two_equal_pairs_goes(style: str) -> None:
    b = Builder(16)
    b.weight("w", 4, 3, 1, 1)
    h = b.fake(b.op("Conv", [b.fake("x", 0.03, 128), b.fake_weight("w")], "c"), 0.02, 0)
    h = b.fake(b.op("Relu", [h], "r"), 0.02, 0)
    b.fake(b.op("MaxPool", [h], "p", kernel_shape=[2, 2]), 0.02, 0, out="y")
    trained = b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 3, 3]})
    result = octavo.convert_qat(trained, style=style)
    assert ops(result)["Relu"] == 0
    assert steps_off(trained, result, 0.02, optimize=True) < 1e-3


@pytest.mark.parametrize("style", STYLES)
def test_a_bias_beside_dead_weights_fits(style: str) -> None:
    b = Builder(17)
    b.weight("w", 4, 3, 1, 1)
    b.arrays["w"][1] *= 1e-11
    b.const("b", np.float32([0.1, 2.0, -0.3, 0.4]))
    h = b.op("Conv", [b.fake("x", 0.03, 128), b.fake_weight("w"), "b"], "c")
    b.fake(h, 0.02, 128, out="y")
    trained = b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]})
    result = octavo.convert_qat(trained, style=style)
    assert not result.plan.skipped
    assert steps_off(trained, result, 0.02, optimize=False) < 1e-3
    assert steps_off(trained, result, 0.02, optimize=True) < 1.01


def test_an_infinite_operand_has_no_range_and_its_node_stays_float() -> None:
    b = Builder(18)
    b.weight("w", 4, 3, 1, 1)
    b.const("low", np.float32(-np.inf))
    h = b.fake(b.op("Conv", [b.fake("x", 0.03, 128), b.fake_weight("w")], "c"), 0.02, 128)
    b.fake(b.op("Max", [h, "low"], "m"), 0.02, 128, out="y")
    trained = b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]})
    result = octavo.convert_qat(trained)
    assert [s.op_type for s in result.plan.skipped] == ["Max"]
    assert steps_off(trained, result, 0.02, optimize=True) < 1e-3


def test_excluded_nodes_stay_float_with_the_reason() -> None:
    trained = graphs.torch_cnn()
    result = octavo.convert_qat(trained, exclude=("n_c2",))
    assert [s.node for s in result.plan.skipped] == ["n_c2"]
    assert steps_off(trained, result, 0.05, optimize=True) < 2.01
    with pytest.raises(RecipeError, match="matches no node"):
        octavo.convert_qat(trained, exclude=("nothing",))


def test_a_model_without_fake_quantization_is_an_error_that_says_so() -> None:
    b = Builder(15)
    b.weight("w", 4, 3, 1, 1)
    b.op("Conv", ["x", "w"], "y")
    with pytest.raises(ModelError, match="no fake quantization"):
        octavo.convert_qat(b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]}))


def test_the_caller_s_model_is_not_changed() -> None:
    trained = graphs.torch_cnn()
    before = trained.SerializeToString()
    octavo.convert_qat(trained, style="qoperator")
    assert trained.SerializeToString() == before


def test_the_command_line_converts(tmp_path: Path, capsys: Any) -> None:
    source, target = tmp_path / "trained.onnx", tmp_path / "int8.onnx"
    trained = graphs.torch_cnn()
    onnx.save(trained, source)
    assert main(["qat", str(source), "-o", str(target), "--format", "qoperator", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verified"]
    feeds = samples(trained)[0]
    assert np.abs(run(str(target), feeds)["y"] - run(trained, feeds, optimize=False)["y"]).max() <= 0.0501
    plain = tmp_path / "plain.onnx"
    onnx.save(helper.make_model(helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w")],
    ), opset_imports=[helper.make_opsetid("", 17)], ir_version=8), plain)  # fmt: skip
    assert main(["qat", str(plain), "-o", str(tmp_path / "no.onnx")]) == 1
    assert "no fake quantization" in capsys.readouterr().err
    assert not (tmp_path / "no.onnx").exists()
