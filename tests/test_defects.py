"""One test for each known defect of the stock quantizer that lies in planning, writing and the front door.

The numbers are those of the list of defects; each name states what Octavo does instead.
"""

from __future__ import annotations

import gc
import io as _io
import logging
import subprocess
import sys
import tracemalloc
from contextlib import redirect_stdout
from pathlib import Path

import builders
import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto
from quantizing import (
    EVERYWHERE,
    convolutions,
    error,
    feeds_for,
    layers,
    listed,
    ops,
    reason,
    run,
    steps,
    weights,
)

import octavo
from octavo.core.plan import Key
from octavo.core.qtypes import INT4, INT8, INT16, UINT4
from octavo.errors import RecipeError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.session import runtime_ir_limit

STYLES = ["qdq", "qoperator"]
BLOCKS = octavo.Scheme(INT8, octavo.PerBlock(16), symmetric=True)


def matmul_then(*more: onnx.NodeProto, outputs: list[str], **arrays: object) -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "w"], ["m"], "MatMul_0"), *more],
        [tensor("x", [4, 16])],
        [tensor(name, [4, 16]) for name in outputs],
        {"w": weights(16, 16), **arrays},
    )


@pytest.mark.parametrize("style", STYLES)
def test_02_clip_with_bounds_above_zero_is_kept(style: str) -> None:
    proto = matmul_then(
        node("Clip", ["m", "a", "b"], ["y"], "Clip_0"), outputs=["y"], a=np.float32(1), b=np.float32(2)
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    assert not result.plan.fused
    got = run(result, data[0])["y"]
    scale = float(result.params[Key("m")].scale)
    assert got.min() >= 1 - scale
    assert np.abs(got - run(proto, data[0])["y"]).max() <= 2 * scale


@pytest.mark.parametrize("style", STYLES)
def test_03_relu_whose_input_has_another_reader_is_kept(style: str) -> None:
    proto = matmul_then(
        node("Relu", ["m"], ["r"], "Relu_0"), node("Add", ["m", "r"], ["y"], "Add_0"), outputs=["y"]
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    assert ops(result)["Relu"] == 1
    assert steps(result, proto, data, "y", "y") <= 2


def test_07_nodes_with_subgraphs_and_nodes_inside_keep_their_domain() -> None:
    branch = graph([node("FastGelu", ["x"], ["o"], "g", domain="com.microsoft")], [], [tensor("o", [4, 16])])
    other = graph([node("MatMul", ["x", "w"], ["p"], "mm")], [], [tensor("p", [4, 16])])
    proto = model(
        [node("If", ["c"], ["y"], "If_0", then_branch=branch, else_branch=other)],
        [tensor("x", [4, 16]), tensor("c", [], TensorProto.BOOL)],
        [tensor("y", [4, 16])],
        {"w": weights(16, 16)},
        domains={"com.microsoft": 1},
    )
    result = octavo.quantize(proto)
    assert {n.op_type: n.domain for n in result.model.graph.all_nodes()}["FastGelu"] == "com.microsoft"
    assert (
        error(result, proto, [{**f, "c": np.array(c)} for f in feeds_for(proto) for c in (True, False)])
        < 0.05
    )


def test_09_external_data_is_replaced_not_appended(tmp_path: Path) -> None:
    sizes = set()
    for _ in range(3):
        octavo.quantize(layers(2), output=tmp_path / "q.onnx", external_data=True)
        sizes.add((tmp_path / "q.onnx.data").stat().st_size)
    assert len(sizes) == 1


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_10_types_inside_subgraphs_are_the_true_ones(kind: int) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    body = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["o"], "relu")]
    branch = graph(body, [], [tensor("o", [4, 16], kind)])
    other = graph([node("Neg", ["x"], ["p"], "neg")], [], [tensor("p", [4, 16], kind)])
    proto = model(
        [node("If", ["c"], ["y"], "If_0", then_branch=branch, else_branch=other)],
        [tensor("x", [4, 16], kind), tensor("c", [], TensorProto.BOOL)],
        [tensor("y", [4, 16], kind)],
        {"w": (weights(16, 16) / 4).astype(dtype)},
    )
    data = [{**f, "c": np.array(True)} for f in feeds_for(proto)]
    result = octavo.quantize(proto, data, recipe=EVERYWHERE)
    assert "mm" in result.plan.nodes
    assert run(result, data[0])["y"].dtype == dtype
    assert error(result, proto, data) < 0.05


def quantized_weight() -> onnx.ModelProto:
    """int8 weight → DequantizeLinear → Transpose → MatMul."""
    return model(
        [
            node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], "dq"),
            node("Transpose", ["wd"], ["wt"], "turn", perm=[1, 0]),
            node("MatMul", ["x", "wt"], ["h"], "mm"),
            node("MatMul", ["h", "w"], ["y"], "float_mm"),
        ],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 16])],
        {
            "wq": np.random.default_rng(0).integers(-127, 127, (16, 16)).astype(np.int8),
            "ws": np.float32(0.01), "wz": np.int8(0), "w": weights(16, 16),
        },
    )  # fmt: skip


@pytest.mark.parametrize("recipe", [octavo.W8A8, EVERYWHERE], ids=["target", "everywhere"])
def test_11_parameters_shared_with_a_skipped_tensor_end_the_search(recipe: octavo.Recipe) -> None:
    proto = quantized_weight()
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe)
    assert "float_mm" in result.plan.nodes
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("excluded", [False, True])
def test_12_where_after_a_quantized_node_works_in_qoperator(excluded: bool) -> None:
    proto = matmul_then(
        node("Where", ["keep", "m", "other"], ["y"], "Where_0"), outputs=["y"],
        keep=np.arange(16) % 2 == 0, other=weights(16, seed=1),
    )  # fmt: skip
    data = feeds_for(proto)
    result = octavo.quantize(
        proto, data, recipe=EVERYWHERE, style="qoperator", exclude=["Where_0"] if excluded else []
    )
    assert ("Where_0" in result.plan.nodes) is not excluded
    assert error(result, proto, data) < 0.03
    only = octavo.quantize(proto, data, style="qoperator", op_types=["MatMul"])
    assert set(only.plan.nodes) == {"MatMul_0"}


@pytest.mark.parametrize("style", STYLES)
def test_15_overrides_of_activations_take_plain_numbers(style: str) -> None:
    proto = matmul_then(outputs=["m"])
    data = feeds_for(proto)
    given = octavo.Override("m", scale=0.125, zero_point=128)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE.but(overrides=(given,)), style=style)
    assert result.params[Key("m")].scale == 0.125
    ranged = octavo.Override("x", range=(-2, 2))
    result = octavo.quantize(proto, data, recipe=EVERYWHERE.but(overrides=(ranged,)), style=style)
    assert result.params[Key("x")].scale == np.float32(4 / 255)


@pytest.mark.parametrize("qtype", [INT4, UINT4, INT16], ids=str)
@pytest.mark.parametrize(
    "base", [octavo.W8A8.but(style=octavo.Style.QOPERATOR), octavo.W8], ids=["qoperator", "dynamic"]
)
def test_16_types_without_kernels_are_refused_before_anything_is_written(
    base: octavo.Recipe, qtype: object
) -> None:
    recipe = base.but(weights=base.weights.but(qtype=qtype))
    with pytest.raises(RecipeError, match=f"{qtype} weights exist in the qdq style only"):
        octavo.quantize(layers(1), feeds_for(layers(1)), recipe=recipe)


def test_20_the_ir_version_is_one_that_the_runtime_loads(tmp_path: Path) -> None:
    proto = layers(1)
    proto.ir_version = onnx.IR_VERSION
    octavo.quantize(proto, [{"x": weights(2, 16)}], output=tmp_path / "q.onnx", effort="plain")
    assert onnx.load(str(tmp_path / "q.onnx")).ir_version <= runtime_ir_limit()


def test_21_nothing_is_written_beside_the_model_nothing_is_printed_and_arguments_stay(tmp_path: Path) -> None:
    onnx.save(layers(2), str(tmp_path / "m.onnx"))
    data = feeds_for(layers(2))
    copies = [{k: v.copy() for k, v in f.items()} for f in data]
    exclude = ["/block_0/MatMul"]
    levels = logging.getLogger().level, list(logging.getLogger().handlers)
    text = _io.StringIO()
    with redirect_stdout(text):
        octavo.quantize(tmp_path / "m.onnx", data, exclude=exclude, effort="plain")
        octavo.quantize(tmp_path / "m.onnx")
    assert listed(tmp_path) == ["m.onnx"]
    assert text.getvalue() == ""
    assert exclude == ["/block_0/MatMul"]
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(data, copies, strict=True))
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == levels


def test_22_work_grows_with_the_number_of_nodes_and_not_its_square() -> None:
    """Calls of Python functions are counted: ten times the nodes may cost twelve times the calls."""

    def calls(count: int) -> int:
        proto = layers(count, 8)
        data = [{"x": weights(2, 8)}]
        found = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(note)
        try:
            octavo.quantize(proto, data, recipe=EVERYWHERE)
        finally:
            sys.setprofile(None)
        return found

    calls(5)
    assert calls(80) <= 12 * calls(8)


@pytest.mark.parametrize("size", [16, 32])
def test_23_blocks_are_quantized_as_the_formula_says(size: int) -> None:
    w = weights(64, 8)
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "mm")], [tensor("x", [4, 64])], [tensor("y", [4, 8])], {"w": w}
    )
    recipe = octavo.W8A16.but(weights=octavo.Scheme(INT8, octavo.PerBlock(size), symmetric=True))
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe)
    stored = next(
        v for v in result.model.graph.initializers.values() if v.dtype.name == "INT8" and v.shape == (64, 8)
    )
    blocks = w.reshape(64 // size, size, 8).astype(np.float64)
    scale = (np.abs(blocks).max(axis=1) / 127).astype(np.float32)
    want = np.clip(np.rint(w / np.repeat(scale, size, axis=0)), -127, 127)
    assert np.abs(stored.const_value.numpy().astype(int) - want).max() <= 1
    assert np.mean(stored.const_value.numpy() != want) < 0.01


def test_24_four_bits_are_packed_low_nibble_first() -> None:
    proto = layers(1, 16)
    recipe = octavo.W8A16.but(weights=octavo.Scheme(INT4, octavo.PerChannel(), symmetric=True))
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe)
    stored = next(
        v for v in result.model.graph.initializers.values() if v.dtype.name == "INT4" and v.shape == (16, 16)
    )
    raw = np.frombuffer(stored.const_value.tobytes(), np.uint8)
    flat = stored.const_value.numpy().astype(np.int8).reshape(-1)
    assert len(raw) == 128
    assert np.array_equal(raw & 15, flat[::2].astype(np.uint8) & 15)
    assert np.array_equal(raw >> 4, flat[1::2].astype(np.uint8) & 15)


@pytest.mark.parametrize("axis", [0, 1])
def test_25_weights_per_channel_are_those_of_each_channel_alone(axis: int) -> None:
    w = weights(16, 16)
    proto = model(
        [node("Gemm", ["x", "w"], ["y"], "g", transB=1 - axis)],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 16])],
        {"w": w},
    )
    result = octavo.quantize(proto, feeds_for(proto), effort="plain")
    stored = next(
        v for v in result.model.graph.initializers.values() if v.dtype.name == "INT8" and v.shape == (16, 16)
    )
    for channel in range(16):
        row = np.take(w, channel, axis)
        scale = np.float32(np.abs(row).max() / np.float64(127))
        assert np.array_equal(
            np.take(stored.const_value.numpy(), channel, axis), np.rint(row / scale).astype(np.int8)
        )


def test_27_float8_weights_are_scaled_by_their_spread_and_run() -> None:
    proto = layers(2)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=octavo.FP8)
    assert {str(p.qtype) for p in result.params.values()} == {"float8e4m3fn"}
    assert query.opset(result.model) >= 19
    assert error(result, proto, data) < 0.25


def test_30_weights_pass_one_by_one_and_no_copy_of_the_model_is_made(tmp_path: Path) -> None:
    count, width = 12, 512
    onnx.save(
        layers(count, width),
        str(tmp_path / "m.onnx"),
        save_as_external_data=True,
        location="w",
        size_threshold=0,
    )
    whole = count * width * width * 4
    octavo.quantize(layers(1), output=tmp_path / "warm.onnx", verify=False)
    gc.collect()
    tracemalloc.start()
    octavo.quantize(tmp_path / "m.onnx", output=tmp_path / "q.onnx", verify=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.75 * whole


def test_31_the_callers_proto_is_left_as_it_was(tmp_path: Path) -> None:
    proto = layers(2)
    before = proto.SerializeToString()
    octavo.quantize(proto, feeds_for(proto), output=tmp_path / "q.onnx", external_data=True, effort="plain")
    assert proto.SerializeToString() == before
    assert not any(i.data_location == TensorProto.EXTERNAL for i in proto.graph.initializer)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fuse", [True, False])
def test_32_a_clamp_whose_input_is_an_output_is_kept(style: str, fuse: bool) -> None:
    proto = matmul_then(node("Relu", ["m"], ["y"], "Relu_0"), outputs=["m", "y"])
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE.but(fuse_clamps=fuse), style=style)
    assert ops(result)["Relu"] == 1
    assert steps(result, proto, data, "m", "y") <= 2
    assert steps(result, proto, data, "m", "m") <= 2


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    "recipe",
    [octavo.W8A16.but(weights=BLOCKS), octavo.W8A8.but(weights=BLOCKS.but(qtype=INT4))],
    ids=["int8 with 16-bit activations", "int4"],
)
def test_33_what_is_written_in_blocks_runs_in_a_default_session(
    recipe: octavo.Recipe, optimize: bool
) -> None:
    proto = layers(2, 32)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe)
    assert error(result, proto, data, optimize=optimize) < (0.05 if recipe.weights.qtype == INT8 else 0.4)


def test_33_blocks_that_the_runtime_fails_on_are_refused() -> None:
    with pytest.raises(
        RecipeError, match="int8 weights in blocks beside uint8 activations fail in the runtime"
    ):
        octavo.quantize(layers(2, 32), feeds_for(layers(2, 32)), recipe=octavo.W8A8.but(weights=BLOCKS))


@pytest.mark.parametrize("style", STYLES)
def test_34_an_excluded_where_is_left_alone(style: str) -> None:
    proto = matmul_then(
        node("Where", ["keep", "m", "other"], ["h"], "Where_0"),
        node("MatMul", ["h", "w"], ["y"], "MatMul_1"),
        outputs=["y"], keep=np.arange(16) % 2 == 0, other=weights(16, seed=1),
    )  # fmt: skip
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style, exclude=["op:Where"])
    assert reason(result, "Where_0") == "excluded by 'op:Where'"
    assert ops(result)["Where"] == 1
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("dynamic", [True, False])
def test_35_weights_in_constant_nodes_are_quantized(dynamic: bool) -> None:
    w = onnx.numpy_helper.from_array(weights(64, 64))
    proto = model(
        [node("Constant", [], ["w"], "c", value=w), node("MatMul", ["x", "w"], ["y"], "mm")],
        [tensor("x", [4, 64])],
        [tensor("y", [4, 64])],
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, None if dynamic else data, effort="plain")
    assert len(io.to_bytes(result.model)) < 0.4 * len(proto.SerializeToString())
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("opset", [11, 12])
def test_36_scales_per_channel_raise_the_opset_and_the_model_loads(opset: int) -> None:
    proto = builders.conv_net(opset=opset)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert query.opset(result.model) == 13
    assert error(result, proto, data) < 0.05


def test_36_a_transpose_of_a_quantized_tensor_keeps_its_type() -> None:
    proto = model(
        [
            node("Conv", ["x", "w"], ["c"], "Conv_0", pads=[1, 1, 1, 1]),
            node("Transpose", ["c"], ["t"], "Transpose_0", perm=[0, 1, 3, 2]),
            node("Conv", ["t", "w"], ["y"], "Conv_1", pads=[1, 1, 1, 1]),
        ],
        [tensor("x", [1, 8, 6, 5])],
        [tensor("y", [1, 8, 5, 6])],
        {"w": weights(8, 8, 3, 3) / 8},
        opset=12,
    )
    data = feeds_for(proto)
    for style in STYLES:
        result = octavo.quantize(proto, data, style=style)
        assert "Transpose_0" in result.plan.nodes
        assert error(result, proto, data) < 0.05


def test_37_symbolic_shape_inference_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    octavo.quantize(
        convolutions(2),
        feeds_for(convolutions(2)),
        prepare=octavo.PrepareOptions(symbolic_shapes=True),
        effort="plain",
    )
    assert listed(tmp_path) == []


def test_21_the_library_sets_up_no_logging_when_imported() -> None:
    code = "import logging, octavo; octavo.quantize; print(len(logging.getLogger().handlers))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
