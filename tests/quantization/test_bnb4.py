"""MatMulBnb4Quantizer as its users call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from octavo.errors import ModelError, OutputError, RecipeError
from octavo.quantization import matmul_bnb4_quantizer as mb
from quantization.weight_graphs import attribute, branches, constant, product, run, three, weights

FP4 = [0, 0.0625 / 12, 8 / 12, 1, 4 / 12, 6 / 12, 2 / 12, 3 / 12]
NF4 = [
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
]  # fmt: skip
TABLES = [np.array(FP4 + [-v for v in FP4]), np.array(NF4)]


def quantized(proto: onnx.ModelProto, kind: int, size: int, *more: Any) -> onnx.ModelProto:
    own = onnx.ModelProto()
    own.CopyFrom(proto)
    quantizer = mb.MatMulBnb4Quantizer(own, kind, size, *more)
    quantizer.process()
    return quantizer.model.model


def stored(proto: onnx.ModelProto, kind: int, size: int, rows: int, columns: int) -> np.ndarray:
    packed, absmax = constant(proto, "W_Bnb4"), constant(proto, "W_absmax")
    codes = np.stack([packed >> 4, packed & 15], -1).reshape(-1)[: rows * columns]
    flat = TABLES[kind][codes] * np.repeat(absmax.astype(np.float64), size)[: rows * columns]
    return flat.reshape(columns, rows).T


@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
@pytest.mark.parametrize(("rows", "columns", "size"), [(64, 8, 16), (96, 9, 64), (65, 9, 32)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_the_runtime_computes_with_the_stored_weights(
    kind: int, rows: int, columns: int, size: int, dtype: Any
) -> None:
    proto = product(rows, columns, dtype)
    made = quantized(proto, kind, size)
    found = made.graph.node[0]
    assert (found.op_type, found.domain, found.name) == ("MatMulBnb4", "com.microsoft", "mm0_Bnb4")
    assert [attribute(found, a) for a in ("K", "N", "block_size", "quant_type")] == [
        rows,
        columns,
        size,
        kind,
    ]
    real = stored(made, kind, size, rows, columns)
    w = constant(proto, "W").astype(np.float64)
    assert np.abs(real - w).max() < 0.2 * np.abs(w).max()
    if dtype == np.float32:  # the CPU has no other kernel
        x = weights(3, rows, seed=4)
        want = x.astype(np.float64) @ real
        assert np.abs(run(made, {"x": x}) - want).max() < 1e-5 * np.abs(want).max()


def test_branches_and_exclusions() -> None:
    made = quantized(branches(), 1, 64)
    assert [n.op_type for a in made.graph.node[0].attribute for n in a.g.node] == ["MatMulBnb4"] * 2
    feeds = {"x": weights(3, 32), "cond": np.array(True)}
    want = run(branches(), feeds)
    assert np.abs(run(made, feeds) - want).max() < 0.3 * np.abs(want).max()
    kept = quantized(three(), 0, 64, ["mm1"])
    assert [n.op_type for n in kept.graph.node] == ["MatMulBnb4", "MatMul", "MatMulBnb4"]


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(RecipeError, match="choose 0 for FP4 or 1 for NF4"):
        mb.MatMulBnb4Quantizer(product(), 2, 64)
    with pytest.raises(RecipeError, match="power of two"):
        mb.MatMulBnb4Quantizer(product(), 1, 60)


def test_the_command_takes_numbers(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(three(), source)
    paths = ["--input_model", str(source), "--output_model", str(target)]
    mb.main([*paths, "--quant_type", "0", "--block_size", "64", "--nodes_to_exclude", "mm0"])
    made = onnx.load(target)
    assert [n.op_type for n in made.graph.node] == ["MatMul", "MatMulBnb4", "MatMulBnb4"]
    assert attribute(made.graph.node[1], "quant_type") == 0
    with pytest.raises(OutputError, match="exists already"):
        mb.main(paths)
    target.unlink()
    mb.main([*paths, "-v"])
    assert attribute(onnx.load(target).graph.node[0], "quant_type") == 1
    with pytest.raises(ModelError):
        mb.main(["--input_model", str(tmp_path / "no.onnx"), "--output_model", str(tmp_path / "o")])
    with pytest.raises(SystemExit):
        mb.main([*paths, "--quant_type", "2"])


@pytest.mark.peer
@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_bytes_are_stocks(kind: int, dtype: Any) -> None:
    peer = pytest.importorskip("onnxruntime.quantization.matmul_bnb4_quantizer")
    for rows, columns, size in ((64, 8, 16), (65, 9, 64), (128, 33, 32)):
        w = weights(rows, columns, seed=rows, dtype=dtype)
        theirs = peer.MatMulBnb4Quantizer(product(), kind, size).bnb4_block_quant(w)
        ours = mb.MatMulBnb4Quantizer(product(), kind, size).bnb4_block_quant(w)
        for a, b in zip(theirs, ours, strict=True):
            np.testing.assert_array_equal(a.reshape(-1), b)


def test_a_model_proto_that_is_given_is_the_one_that_is_quantized() -> None:
    proto = product()
    quantizer = mb.MatMulBnb4Quantizer(proto, mb.MatMulBnb4Quantizer.NF4, 64)
    quantizer.process()
    assert [n.op_type for n in proto.graph.node] == ["MatMulBnb4"]
    assert quantizer.model.model is proto
