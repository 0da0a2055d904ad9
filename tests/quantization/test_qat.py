"""``quantize_qat`` as callers of the stock function used it."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import qat_graphs as graphs
from quantizing import run

import octavo.quantization as drop_in
from octavo.quantization import QuantFormat, QuantizationMode, QuantType, quantize_qat
from octavo.quantization._errors import QuantizationWarning


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}


def ops(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def test_a_file_goes_in_and_a_file_of_integer_operators_comes_out(tmp_path: Path) -> None:
    trained, target = graphs.torch_cnn(), tmp_path / "int8.onnx"
    onnx.save(trained, tmp_path / "trained.onnx")
    with pytest.warns(QuantizationWarning, match=r"QuantFormat\.QDQ"):
        assert quantize_qat(tmp_path / "trained.onnx", target) is None
    assert ops(target)["ConvInteger"] == 2
    want = run(trained, feeds(), optimize=False)["y"]
    assert np.abs(run(str(target), feeds())["y"] - want).max() <= 0.0501


@pytest.mark.parametrize(
    ("style", "op"),
    [
        (QuantFormat.QDQ, "DequantizeLinear"),
        (QuantFormat.QOperator, "QLinearConv"),
        (QuantizationMode.QLinearOps, "QGemm"),
    ],
    ids=str,
)
def test_each_format_can_be_requested(
    style: QuantFormat | QuantizationMode, op: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    trained, target = graphs.torch_cnn(), tmp_path / "int8.onnx"
    quantize_qat(trained, target, quant_format=style, weight_type=QuantType.QInt8, per_channel=True)
    assert ops(target)[op]
    assert not [w for w in recwarn if isinstance(w.message, QuantizationWarning)]
    want = run(trained, feeds(), optimize=False)["y"]
    assert np.abs(run(str(target), feeds())["y"] - want).max() <= 0.0501


def test_nodes_and_op_types_choose_what_is_quantized(tmp_path: Path) -> None:
    target = tmp_path / "int8.onnx"
    quantize_qat(graphs.torch_cnn(), target, op_types_to_quantize=["Gemm"])
    assert (ops(target)["ConvInteger"], ops(target)["MatMulInteger"]) == (0, 1)
    with pytest.warns(QuantizationWarning):
        quantize_qat(graphs.torch_cnn(), target, nodes_to_exclude=["n_c1"])
    assert ops(target)["ConvInteger"] == 1
    with pytest.warns(QuantizationWarning):
        quantize_qat(graphs.torch_cnn(), target, nodes_to_quantize=["n_c1"])
    assert (ops(target)["ConvInteger"], ops(target)["MatMulInteger"]) == (1, 0)


def test_weights_may_lie_beside_the_model(tmp_path: Path) -> None:
    quantize_qat(
        graphs.torch_cnn(), tmp_path / "m.onnx", use_external_data_format=True, quant_format=QuantFormat.QDQ
    )
    assert (tmp_path / "m.onnx.data").exists()
    assert run(str(tmp_path / "m.onnx"), feeds())["y"].shape == (2, 5)


def test_wrong_requests_are_value_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="matches no node"):
        quantize_qat(graphs.torch_cnn(), tmp_path / "m.onnx", nodes_to_exclude=["nothing"])
    with pytest.raises(ValueError, match="quant_format"):
        quantize_qat(graphs.torch_cnn(), tmp_path / "m.onnx", quant_format="qdq")  # type: ignore[arg-type]
    assert not (tmp_path / "m.onnx").exists()


def test_arguments_keep_their_places() -> None:
    assert list(inspect.signature(quantize_qat).parameters)[:10] == [
        "model_input", "model_output", "op_types_to_quantize", "per_channel", "reduce_range",
        "activation_type", "weight_type", "nodes_to_quantize", "nodes_to_exclude", "use_external_data_format",
    ]  # fmt: skip
    assert "quantize_qat" in drop_in.__all__


def test_the_class_for_cuda_layouts_says_why_it_can_t_work() -> None:
    from octavo.quantization.cuda_quantizer import has_cuda_weight_prepacking

    quantizer = drop_in.CudaQuantizer()
    assert not has_cuda_weight_prepacking()
    with pytest.raises(NotImplementedError, match=r"CUDA build.*MatMulNBitsQuantizer"):
        quantizer.matmulnbits_blockwise_quantize(np.zeros((4, 4)), 4, 32)
