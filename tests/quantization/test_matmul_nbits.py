"""MatMulNBitsQuantizer as its users call it; results are run, and checked against float64 arithmetic."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, helper, numpy_helper

from octavo.core import blocks
from octavo.errors import DataError, OctavoError, OutputError, RecipeError
from octavo.model.files import io
from octavo.quantization import matmul_4bits_quantizer as four
from octavo.quantization import matmul_nbits_quantizer as nb
from octavo.quantization._types import QuantFormat
from quantization.weight_graphs import (
    attribute,
    branches,
    constant,
    lookup,
    product,
    run,
    stored_weight,
    three,
    weights,
)

Q = nb.MatMulNBitsQuantizer


class Reader:
    """Samples for ``x`` whose columns hang together."""

    def __init__(self, width: int, count: int = 3, name: str = "x") -> None:
        mix = weights(width // 4, width, seed=9)
        self._left = [{name: (weights(32, width // 4, seed=i) @ mix)} for i in range(count)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


def quantized(proto: onnx.ModelProto, *args: Any, **kwargs: Any) -> onnx.ModelProto:
    quantizer = Q(proto, *args, **kwargs)
    quantizer.process()
    return quantizer.model.model


def config(name: str, **kwargs: Any) -> nb.WeightOnlyQuantConfig:
    return getattr(nb, f"{name}WeightOnlyQuantConfig")(**kwargs)


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("style", list(QuantFormat), ids=str)
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_runtime_computes_with_the_stored_weights(
    bits: int, symmetric: bool, style: QuantFormat, dtype: Any
) -> None:
    for rows, size in ((96, 32), (70, 16), (128, 128)):
        proto = product(rows, 8, dtype)
        made = quantized(proto, bits, size, symmetric, quant_format=style)
        first = made.graph.node[0]
        assert first.op_type == ("MatMulNBits" if style == QuantFormat.QOperator else "DequantizeLinear")
        real = stored_weight(made, first)
        steps = {2: 0.6, 4: 0.13, 8: 0.008}[bits]
        assert np.abs(real - constant(proto, "W")).max() < steps * np.abs(constant(proto, "W")).max()
        x = weights(3, rows, seed=7, dtype=dtype)
        want = x.astype(np.float64) @ real
        got = run(made, {"x": x}, optimize=False).astype(np.float64)
        assert np.abs(got - want).max() < (2e-3 if dtype == np.float16 else 1e-5) * np.abs(want).max()
        fused = run(made, {"x": x}).astype(np.float64)  # the runtime may round activations to 8 bits
        assert np.abs(fused - want).max() < 0.03 * np.abs(want).max()


def test_the_name_of_older_releases_gives_the_same_weights() -> None:
    older = four.MatMul4BitsQuantizer(product(96, 8), 32, True, 4)
    older.process()
    assert older.model.model == quantized(product(96, 8), 4, 32, True, 4)
    by_method = four.MatMul4BitsQuantizer(product(96, 8), algo_config=four.RTNWeightOnlyQuantConfig())
    by_method.process()
    assert op_types(by_method.model.model) == ["MatMulNBits"]


@pytest.mark.parametrize("rows", [32, 96, 160], ids=["1 block", "3 blocks", "5 blocks"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", ["RTN", "KQuant", "HQQ", "GPTQ"])
def test_every_method_takes_any_count_of_blocks_and_honours_bits(name: str, bits: int, rows: int) -> None:
    proto = product(rows)
    more = {"calibration_data_reader": Reader(rows)} if name == "GPTQ" else {}
    made = quantized(proto, bits, 32, algo_config=config(name, **more))
    found = made.graph.node[0]
    assert (attribute(found, "bits"), attribute(found, "block_size")) == (bits, 32)
    x = weights(2, rows, seed=3)
    want = x.astype(np.float64) @ stored_weight(made, found)
    assert np.abs(run(made, {"x": x}) - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", ["RTN", "KQuant", "HQQ", "GPTQ"])
def test_every_method_writes_qdq(name: str) -> None:
    more = {"calibration_data_reader": Reader(96)} if name == "GPTQ" else {}
    made = quantized(product(), 4, 32, algo_config=config(name, quant_format=QuantFormat.QDQ, **more))
    assert op_types(made) == ["DequantizeLinear", "MatMul"]
    x = weights(2, 96, seed=3)
    want = x.astype(np.float64) @ stored_weight(made, made.graph.node[0])
    assert np.abs(run(made, {"x": x}, optimize=False) - want).max() < 1e-5 * np.abs(want).max()


def test_hqq_stores_zero_points_that_are_fractions() -> None:
    zero = constant(quantized(product(), 4, 32, algo_config=config("HQQ")), "W_zero_points")
    assert zero.dtype == np.float32
    assert (zero != np.rint(zero)).any()


def test_gptq_brings_the_outputs_closer() -> None:
    proto = product()
    reader = Reader(96)
    x = np.concatenate([sample["x"] for sample in Reader(96)._left])
    want = x.astype(np.float64) @ constant(proto, "W")
    fed = quantized(proto, 4, 32, algo_config=config("GPTQ", calibration_data_reader=reader))
    plain = quantized(proto, 4, 32, algo_config=config("RTN"))
    error = [np.linalg.norm(x @ stored_weight(m, m.graph.node[0]) - want) for m in (fed, plain)]
    assert error[0] < 0.6 * error[1]


@pytest.mark.parametrize("style", [QuantFormat.QOperator, QuantFormat.QDQ])
@pytest.mark.parametrize("algorithm", ["importance", "awq", "gptq:sequential=yes"])
def test_algorithms_that_weigh_inputs_bring_the_outputs_closer(algorithm: str, style: QuantFormat) -> None:
    factors = np.exp(np.linspace(-2, 2, 64)).astype(np.float32)  # channels of unlike size between two layers
    arrays = {"w0": weights(64, 64, seed=2) * factors, "w1": weights(64, 64, seed=3)}
    nodes = [node("MatMul", ["x", "w0"], ["h"], "first"), node("MatMul", ["h", "w1"], ["y"], "second")]
    proto = model(nodes, [tensor("x", ["n", 64])], [tensor("y", ["n", 64])], arrays)
    fed = config("Observed", algorithm=algorithm, calibration_data_reader=Reader(64), quant_format=style)
    x = {"x": np.concatenate([sample["x"] for sample in Reader(64)._left])}
    made = [quantized(proto, 4, 32, algo_config=one) for one in (fed, config("RTN", quant_format=style))]
    want = run(proto, x)
    errors = [np.linalg.norm(run(one, x, optimize=False) - want) for one in made]
    assert errors[0] < 0.9 * errors[1]


def test_gptq_without_data_is_refused() -> None:
    with pytest.raises(DataError, match="calibration data"):
        quantized(product(), algo_config=config("GPTQ"))


def test_channel_wise_blocks_are_whole_columns() -> None:
    for symmetric, ops in (
        (False, ["DequantizeLinear", "MatMul"]),
        (True, ["DequantizeLinear", "Transpose", "MatMul"]),
    ):
        made = quantized(
            product(70), 4, 32, symmetric, quant_format=QuantFormat.QDQ, channel_wised_quantize=True
        )
        assert op_types(made) == ops
        assert attribute(made.graph.node[0], "block_size") == 70
        x = weights(2, 70)
        want = x.astype(np.float64) @ stored_weight(made, made.graph.node[0])
        assert np.abs(run(made, {"x": x}) - want).max() < 0.02 * np.abs(want).max()


def test_include_restricts_and_exclude_leaves_out() -> None:
    only = quantized(three(), 4, 32, nodes_to_include=["mm0"])
    assert [n.name for n in only.graph.node] == ["mm0_Q4", "mm1", "mm2"]
    but = quantized(three(), 4, 32, nodes_to_exclude=["mm0"])
    assert [n.name for n in but.graph.node] == ["mm0", "mm1_Q4", "mm2_Q4"]
    rtn = quantized(three(), 4, 32, nodes_to_include=["mm1"], algo_config=config("RTN"))
    assert [n.name for n in rtn.graph.node] == ["mm0", "mm1_Q4", "mm2"]
    with pytest.raises(RecipeError, match="no node 'mmO'"):
        quantized(three(), nodes_to_include=["mmO"])


@pytest.mark.parametrize("name", ["RTN", "KQuant"])
def test_nodes_have_settings_of_their_own(name: str) -> None:
    own = {"mm0": {"bits": 8, "group_size": 16, "scheme": "sym"}, "mm1": {"bits": 8}, "mm2": "fp32"}
    made = quantized(three(), 4, 32, algo_config=config(name, customized_weight_config=own))
    first, second, third = made.graph.node
    assert [attribute(first, a) for a in ("bits", "block_size")] == [8, 16]
    assert len(first.input) == 3
    assert [attribute(second, a) for a in ("bits", "block_size")] == [8, 32]
    assert len(second.input) == 4
    assert third.op_type == "MatMul"
    wrong = {"mm0": {"bit": 8}}
    with pytest.raises(RecipeError, match="did you mean 'bits'"):
        quantized(three(), algo_config=config(name, customized_weight_config=wrong))


def test_ratios_shrink_ranges() -> None:
    ratio = quantized(product(), 4, 32, algo_config=config("RTN", ratios={"mm0": 0.5}))
    plain = quantized(product(), 4, 32, algo_config=config("RTN"))
    np.testing.assert_allclose(constant(ratio, "W_scale"), constant(plain, "W_scale") / 2, rtol=1e-6)


def test_accuracy_level_is_written() -> None:
    assert attribute(quantized(product(), 4, 32, accuracy_level=4).graph.node[0], "accuracy_level") == 4
    assert attribute(quantized(product(), 4, 32).graph.node[0], "accuracy_level") is None


def test_a_setting_beside_the_config_counts_where_the_config_has_its_default() -> None:
    made = quantized(product(), 8, 16, algo_config=config("HQQ"))
    assert [attribute(made.graph.node[0], a) for a in ("bits", "block_size")] == [8, 16]
    made = quantized(product(), 8, 16, algo_config=config("HQQ", bits=2, block_size=64))
    assert [attribute(made.graph.node[0], a) for a in ("bits", "block_size")] == [2, 64]


@pytest.mark.parametrize("style", list(QuantFormat), ids=str)
def test_weights_in_constant_nodes_and_tied_weights(style: QuantFormat) -> None:
    w = weights(32, 32)
    nodes = [
        node("Constant", [], ["W"], value=numpy_helper.from_array(w, "W")),
        node("MatMul", ["x", "W"], ["h"], "a"),
        node("MatMul", ["h", "W"], ["y"], "b"),
    ]
    proto = model(nodes, [tensor("x", [2, 32])], [tensor("y", [2, 32])])
    made = quantized(proto, 4, 32, quant_format=style)
    assert len(made.graph.initializer) == 3  # stored once, for both readers
    x = weights(2, 32, seed=5)
    real = stored_weight(made, made.graph.node[0])
    want = x @ real @ real
    assert np.abs(run(made, {"x": x}, optimize=False) - want).max() < 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("style", list(QuantFormat), ids=str)
@pytest.mark.parametrize("name", ["Default", "RTN", "KQuant"])
def test_products_inside_branches_are_quantized(name: str, style: QuantFormat) -> None:
    made = quantized(branches(), 8, 32, quant_format=style, algo_config=config(name, quant_format=style))
    inner = [n.op_type for a in made.graph.node[0].attribute for n in a.g.node]
    assert inner == ["MatMulNBits"] * 2  # the runtime loads no DequantizeLinear of an outer weight
    assert not any(t.data_type == TensorProto.FLOAT and t.dims[:] == [32, 16] for t in made.graph.initializer)
    for flag in (True, False):
        feeds = {"x": weights(3, 32, seed=8), "cond": np.array(flag)}
        want = run(branches(), feeds)
        assert np.abs(run(made, feeds) - want).max() < 0.03 * np.abs(want).max()


def test_a_name_that_two_branches_share_excludes_both() -> None:
    made = quantized(branches(), 4, 32, nodes_to_exclude=["mm"])
    assert [n.op_type for a in made.graph.node[0].attribute for n in a.g.node] == ["MatMul", "MatMul"]


def test_a_node_with_a_graph_keeps_its_domain() -> None:
    body = graph([node("MatMul", ["x", "W"], ["out"], "mm")], [], [tensor("out", None)])
    nodes = [node("Search", ["x"], ["y"], "s", domain="com.example", body=body)]
    proto = model(
        nodes,
        [tensor("x", [2, 32])],
        [tensor("y", [2, 16])],
        {"W": weights(32, 16)},
        domains={"com.example": 1},
    )
    made = quantized(proto, 4, 32)
    assert made.graph.node[0].domain == "com.example"
    assert made.graph.node[0].attribute[0].g.node[0].op_type == "MatMulNBits"


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [4, 8])
def test_lookups_read_blocks(bits: int, symmetric: bool, dtype: Any) -> None:
    for columns in (64, 70):
        proto = lookup(columns=columns, dtype=dtype)
        made = quantized(proto, bits, 32, symmetric, op_types_to_quantize=("MatMul", "Gather"))
        found = made.graph.node[0]
        assert (found.op_type, found.domain) == ("GatherBlockQuantized", "com.microsoft")
        parts = [constant(made, name).astype(np.float64) for name in (found.input[0], *found.input[2:])]
        spread = [np.repeat(p, 32, 1)[:, :columns] for p in parts[1:]]
        zero = spread[1] if len(spread) > 1 else (128 if bits == 8 else 0)
        real = (parts[0] - zero) * spread[0]
        table = constant(proto, "W").astype(np.float64)
        assert np.abs(real - table).max() < (0.13 if bits == 4 else 0.01) * np.abs(table).max()
        ids = np.array([0, 19, 4])
        assert np.abs(run(made, {"i": ids}) - real[ids]).max() < 2e-3 * np.abs(real).max()


def test_lookups_that_no_kernel_takes_stay_float() -> None:
    both = {"op_types_to_quantize": ("Gather",)}
    assert op_types(quantized(lookup(), 2, 32, **both)) == ["Gather"]
    assert op_types(quantized(lookup(), 4, 8, **both)) == ["Gather"]
    assert op_types(quantized(lookup(axis=1), 8, 32, **both)) == ["Gather"]
    along = quantized(lookup(axis=1), 4, 32, **both, quant_axes=(("Gather", 0),))
    assert attribute(along.graph.node[0], "quantize_axis") == 0
    assert run(along, {"i": np.array([1, 2, 3])}).shape == (20, 3)


def test_blocks_that_the_runtime_misreads_are_written_otherwise() -> None:
    """8-bit blocks behind DequantizeLinear fail at run time; 2-bit rows that do not fill bytes go wrong."""
    w = weights(32, 8)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        node("Reshape", ["d", "shape"], ["r"], "r"),
        node("MatMul", ["r", "W"], ["y"], "mm"),
    ]
    arrays = {"s": np.float32(0.05), "z": np.uint8(128), "W": w, "shape": np.int64([-1, 32])}
    proto = model(nodes, [tensor("x", ["b", 32])], [tensor("y", ["b", 8])], arrays)
    made = quantized(proto, 8, 16, quant_format=QuantFormat.QDQ)
    assert made.graph.node[-1].op_type == "MatMulNBits"
    feeds = {"x": weights(2, 32)}
    want = run(proto, feeds)
    assert np.abs(run(made, feeds) - want).max() < 0.02 * np.abs(want).max()

    odd = quantized(product(96, 9), 2, 32, quant_format=QuantFormat.QDQ)
    assert op_types(odd) == ["MatMulNBits"]
    x = weights(2, 96)
    want = x @ stored_weight(odd, odd.graph.node[0])
    assert np.abs(run(odd, {"x": x}) - want).max() < 0.03 * np.abs(want).max()


def test_what_can_not_be_quantized_stays_float(caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        node("MatMul", ["x", "x2"], ["a"], "both"),
        node("MatMul", ["a", "cube"], ["y"], "cubic"),
    ]
    proto = model(
        nodes,
        [tensor("x", [1, 4, 4]), tensor("x2", [1, 4, 4])],
        [tensor("y", [2, 4, 4])],
        {"cube": weights(2, 4, 4)},
    )
    with caplog.at_level(logging.INFO, logger="octavo.quantization"):
        made = quantized(proto)
    assert op_types(made) == ["MatMul", "MatMul"]
    assert "both stays float: its weight is not constant" in caplog.text
    assert "cubic stays float: its weight has 3 dimensions" in caplog.text


def test_blocks_that_the_kernel_does_not_take_are_refused() -> None:
    for size in (8, 24, 512):
        with pytest.raises(RecipeError, match="MatMulNBits takes blocks of 16"):
            quantized(product(), 4, size)
    with pytest.raises(RecipeError, match="3 bits"):
        quantized(product(), 3, 32)


def test_the_callers_model_is_not_changed() -> None:
    proto = product()
    before = proto.SerializeToString()
    quantized(proto, 4, 32)
    assert proto.SerializeToString() == before


def test_awq_names_the_package_it_needs() -> None:
    quantizer = Q(product(), algo_config=nb.NVAWQWeightOnlyQuantConfig("folder"))
    with pytest.raises(RecipeError, match="nvidia-modelopt"):
        quantizer.process()


def test_large_weights_are_streamed_from_their_file_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "float.onnx", tmp_path / "q.onnx"
    proto = product(128, 64)
    io.save(io.load(proto), source, external_data=True)
    monkeypatch.setattr(blocks, "RECOMPUTED_FROM", 0)
    quantizer = Q(str(source), 4, 32)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=True)
    names = [f"{stem}.onnx{end}" for stem in ("float", "q") for end in ("", ".data")]
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert (tmp_path / "q.onnx.data").stat().st_size >= 64 * 64
    kept = quantized(proto, 4, 32)
    for name in ("W_Q4", "W_scales", "W_zero_points"):
        np.testing.assert_array_equal(constant(onnx.load(target), name), constant(kept, name))
    quantizer = Q(str(source), 4, 32)
    quantizer.process()
    with pytest.raises(OutputError, match="choose another output path"):
        quantizer.model.save_model_to_file(str(source))


def test_nodes_one_at_a_time() -> None:
    proto = product()
    for style, ops in (
        (QuantFormat.QOperator, ["MatMulNBits"]),
        (QuantFormat.QDQ, ["DequantizeLinear", "MatMul"]),
    ):
        own = onnx.ModelProto()
        own.CopyFrom(proto)
        one = nb.DefaultWeightOnlyQuantizer(config("Default", block_size=32, quant_format=style))
        nodes = one.quantize(own.graph.node[0], [own.graph])
        assert [n.op_type for n in nodes] == ops
        assert {name for n in nodes for name in n.input} - {"x"} <= {
            *(t.name for t in own.graph.initializer),
            *(name for n in nodes for name in n.output),
        }
    hqq = nb.HQQWeightOnlyQuantizer(config("HQQ", block_size=32))
    assert hqq.quantize(proto.graph.node[0], [proto.graph])[0].op_type == "MatMulNBits"
    table = lookup()
    one = nb.DefaultWeightOnlyQuantizer(config("Default", block_size=32))
    assert one.quantize(table.graph.node[0], [table.graph])[0].op_type == "GatherBlockQuantized"
    relu = helper.make_node("Relu", ["x"], ["y"])
    assert one.quantize(relu, [table.graph]) == [relu]


def test_arrays_one_at_a_time() -> None:
    one = nb.DefaultWeightOnlyQuantizer(config("Default", block_size=16))
    w = weights(48, 4)
    packed, scale, zero = one.qbits_block_quant(w)
    assert (packed.shape, scale.shape, zero.shape) == ((4, 3, 8), (4, 3), (4, 2))
    row = np.float32([[1.0, -8.0, 3.0, 7.0]])
    integers, step = one.quant_slice_symmetric(row)
    np.testing.assert_array_equal(integers * step, row)
    integers, step, middle = one.quant_slice_asymmetric(row)
    np.testing.assert_array_equal((integers - middle.astype(np.float32)) * step, row)
    assert one.pack_int8_to_int4(np.arange(-3, 4, dtype=np.int8)).tolist() == [237, 15, 33, 3]
    packed, scale, zero = one.quantize_ndarray(w.T[:, :40], 1, 16, False)
    assert (packed.shape, scale.shape, zero.shape) == ((80,), (4, 3), (6,))
    assert one.quantize_ndarray(w.T[:, :40], 1, 16, True)[2] is None
    matrix = np.arange(12, dtype=np.uint8)
    turned = nb.transpose_packed_int4_matrix(matrix, 6, 4)
    np.testing.assert_array_equal(nb.transpose_packed_int4_matrix(turned, 4, 6), matrix)
    assert nb.is_divisible(8, 4)
    assert not nb.is_divisible(8, 3)
    proto = product()
    assert nb.get_initializer("W", [proto.graph])[1] is proto.graph
    assert nb.get_initializer("V", [proto.graph]) == (None, None)


def test_hqq_on_arrays() -> None:
    w = weights(8, 64)
    integers, scale, zero = nb.HQQWeightOnlyQuantizer.quantize_internal(w, 4, group_size=16)
    groups = (integers.reshape(-1, 16) - zero) * scale
    assert np.abs(groups.reshape(w.shape) - w).max() < 1.1 * scale.max()
    packed = np.zeros((8, 32), np.uint8)
    nb.HQQWeightOnlyQuantizer.pack_on_row_fast_248bit(packed, integers, 4)
    np.testing.assert_array_equal(packed & 15, integers[:, ::2])
    np.testing.assert_array_equal(packed >> 4, integers[:, 1::2])
    inverse = 15 / (w.max(1, keepdims=True) - w.min(1, keepdims=True))
    start = -w.min(1, keepdims=True) * inverse
    same, better = nb.HQQWeightOnlyQuantizer.optimize_weights(w, inverse, start, [0, 15], axis=1)

    def loss(z: np.ndarray) -> float:
        q = np.clip(np.rint(w * inverse + z), 0, 15)
        return float((np.abs(w - (q - z) / inverse) ** 0.7).sum())

    assert same is inverse
    assert loss(better) <= loss(start)


# ---- the command line


def saved(tmp_path: Path, proto: onnx.ModelProto | None = None) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(proto if proto is not None else three(), path)
    return path


def command(tmp_path: Path, *flags: str, proto: onnx.ModelProto | None = None) -> onnx.ModelProto:
    source, target = saved(tmp_path, proto), tmp_path / "q.onnx"
    nb.main(["--input_model", str(source), "--output_model", str(target), *flags])
    return onnx.load(target)


@pytest.mark.parametrize("method", ["default", "rtn", "k_quant", "hqq"])
def test_the_command_honours_block_size_and_bits(tmp_path: Path, method: str) -> None:
    made = command(tmp_path, "--quant_method", method, "--block_size", "16", "--bits", "8")
    for found in made.graph.node:
        assert [attribute(found, a) for a in ("bits", "block_size")] == [8, 16]


def test_the_commands_flags(tmp_path: Path) -> None:
    symmetric = command(tmp_path)
    assert [len(n.input) for n in symmetric.graph.node] == [3, 3, 3]
    (tmp_path / "q.onnx").unlink()
    flags = ["--symmetric", "false", "--accuracy_level", "4", "--nodes_to_exclude", "mm0", "mm1", "-v"]
    made = command(tmp_path, *flags)
    assert op_types(made) == ["MatMul", "MatMul", "MatMulNBits"]
    assert len(made.graph.node[2].input) == 4
    assert attribute(made.graph.node[2], "accuracy_level") == 4
    (tmp_path / "q.onnx").unlink()
    made = command(tmp_path, "--nodes_to_include", "mm1", "--quant_format", "QDQ", "--symmetric")
    assert op_types(made) == ["MatMul", "DequantizeLinear", "MatMul", "MatMul"]
    (tmp_path / "q.onnx").unlink()
    ops = ["--op_types_to_quantize", "MatMul", "Gather", "--quant_axes", "MatMul:0", "Gather:1"]
    assert op_types(command(tmp_path, *ops, proto=lookup())) == ["GatherBlockQuantized"]


def test_the_command_says_what_is_wrong_and_fails(tmp_path: Path) -> None:
    source = saved(tmp_path)
    there = ["--input_model", str(source), "--output_model", str(tmp_path / "q.onnx")]
    awq = ["--tokenizer_dir", "t", "--calib_dataset_name", "cnn", "--cache_dir", "c"]
    for arguments, words in (
        (["--input_model", str(source), "--output_model", str(source)], "exists already"),
        (["--input_model", str(tmp_path / "no.onnx"), "--output_model", "q.onnx"], r"no\.onnx"),
        ([*there, "--block_size", "17"], "17"),
        ([*there, "--quant_method", "gptq"], "calibration data"),
        ([*there, "--quant_method", "nvidia_awq", *awq], "nvidia-modelopt"),
    ):
        with pytest.raises(OctavoError, match=words):
            nb.main(arguments)
    for wrong in (["--symmetric", "maybe"], ["--bits", "four"], ["--quant_axes", "Gather"]):
        with pytest.raises(SystemExit) as stop:
            nb.main([*there, *wrong])
        assert stop.value.code == 2
    assert not (tmp_path / "q.onnx").exists()


def test_run_as_a_module(tmp_path: Path) -> None:
    source, target = saved(tmp_path), tmp_path / "q.onnx"
    line = [sys.executable, "-m", "octavo.quantization.matmul_nbits_quantizer"]
    done = subprocess.run(
        [*line, "--input_model", str(source), "--output_model", str(target)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert target.exists()


def test_import_leaves_logging_alone() -> None:
    code = (
        "import logging, octavo.quantization.matmul_nbits_quantizer;"
        "import octavo.quantization.matmul_bnb4_quantizer;"
        "assert not logging.getLogger().handlers; assert logging.getLogger().level == logging.WARNING"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- beside stock


def stock() -> Any:
    return pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")


def copy_of(proto: onnx.ModelProto) -> onnx.ModelProto:
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    return other


@pytest.mark.peer
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_default_is_stocks_byte_for_byte(bits: int, symmetric: bool, dtype: Any) -> None:
    peer = stock()
    for rows, size in ((96, 32), (256, 128), (64, 16)):
        proto = product(rows, 8, dtype)
        theirs = peer.MatMulNBitsQuantizer(copy_of(proto), bits, size, symmetric, 4)
        theirs.process()
        _same(theirs.model.model, quantized(proto, bits, size, symmetric, 4))


@pytest.mark.peer
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_qdq_and_gather_are_stocks_byte_for_byte(symmetric: bool) -> None:
    peer = stock()
    theirs = peer.MatMulNBitsQuantizer(
        copy_of(product()), 4, 32, symmetric, quant_format=peer.QuantFormat.QDQ
    )
    theirs.process()
    _same(theirs.model.model, quantized(product(), 4, 32, symmetric, quant_format=QuantFormat.QDQ))
    theirs = peer.MatMulNBitsQuantizer(lookup(), 4, 32, symmetric, op_types_to_quantize=("Gather",))
    theirs.process()
    _same(theirs.model.model, quantized(lookup(), 4, 32, symmetric, op_types_to_quantize=("Gather",)))


@pytest.mark.peer
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_rtn_is_stocks(symmetric: bool, capfd: pytest.CaptureFixture[str]) -> None:
    peer = stock()
    proto = product(128)
    theirs = peer.MatMulNBitsQuantizer(
        copy_of(proto), 4, 32, symmetric, algo_config=peer.RTNWeightOnlyQuantConfig()
    )
    theirs.process()
    capfd.readouterr()
    made = quantized(proto, 4, 32, symmetric, algo_config=config("RTN"))
    assert capfd.readouterr().out == ""
    other = theirs.model.model
    assert list(made.graph.node[0].input) == list(other.graph.node[0].input)
    np.testing.assert_array_equal(constant(made, "W_Q4G32"), constant(other, "W_Q4G32"))
    np.testing.assert_allclose(constant(made, "W_scale"), constant(other, "W_scale"), rtol=2e-7)
    if not symmetric:
        np.testing.assert_array_equal(constant(made, "W_zp"), constant(other, "W_zp"))


@pytest.mark.peer
def test_k_quant_is_no_worse_than_stocks() -> None:
    peer = stock()
    proto = product(128)
    theirs = peer.MatMulNBitsQuantizer(copy_of(proto), 4, 32, algo_config=peer.KQuantWeightOnlyQuantConfig())
    theirs.process()
    made = quantized(proto, 4, 32, algo_config=config("KQuant"))
    w = constant(proto, "W").astype(np.float64)
    tiles = w.T.reshape(8, 4, 32)
    weight = np.sqrt((tiles**2).mean(-1, keepdims=True)) + np.abs(tiles)

    def loss(m: onnx.ModelProto) -> float:
        error = (stored_weight(m, m.graph.node[0]) - w).T.reshape(8, 4, 32)
        return float((weight * error**2).sum())

    other = theirs.model.model
    assert loss(made) <= 1.0001 * loss(other)
    np.testing.assert_allclose(constant(made, "W_scale"), constant(other, "W_scale"), rtol=0.2)


def _same(theirs: onnx.ModelProto, ours: onnx.ModelProto) -> None:
    assert [(n.op_type, n.domain, n.name, list(n.input), list(n.output)) for n in ours.graph.node] == [
        (n.op_type, n.domain, n.name, list(n.input), list(n.output)) for n in theirs.graph.node
    ]
    for a, b in zip(theirs.graph.node, ours.graph.node, strict=True):
        assert sorted(x.SerializeToString() for x in a.attribute) == sorted(
            x.SerializeToString() for x in b.attribute
        )
    want = {t.name: (t.data_type, list(t.dims), t.raw_data) for t in theirs.graph.initializer}
    got = {t.name: (t.data_type, list(t.dims), t.raw_data) for t in ours.graph.initializer}
    assert got == want
