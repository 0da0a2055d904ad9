"""``quantize_qat`` on what PyTorch exported (``scripts/export_qat.py``): results answer as PyTorch did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import qat_graphs as graphs
from onnx import numpy_helper
from quantizing import run

from octavo.quantization import QuantFormat, QuantizationMode, quantize_qat

pytestmark = pytest.mark.filterwarnings("ignore::octavo.quantization._work.QuantizationWarning")

DATA = Path(__file__).parent / "data"
EXPORTS = sorted(path.name for path in DATA.glob("*.onnx"))
STYLES = [QuantFormat.QDQ, QuantFormat.QOperator, QuantizationMode.IntegerOps]


def converted(source: Path | onnx.ModelProto, folder: Path, style: QuantFormat | QuantizationMode) -> Path:
    quantize_qat(source, folder / "int8.onnx", quant_format=style)
    return folder / "int8.onnx"


def ops(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


def last_scale(path: Path) -> float:
    """The step of a model's output, which a DequantizeLinear makes."""
    graph = onnx.load(path).graph
    last = next(node for node in graph.node if graph.output[0].name in node.output)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return float(arrays[last.input[1]])


def test_both_exporters_are_covered() -> None:
    assert {name.split(".")[1] for name in EXPORTS} == {"dynamo", "torchscript"}


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("name", EXPORTS)
def test_exports_of_pytorch_answer_as_pytorch_did(
    name: str, style: QuantFormat | QuantizationMode, tmp_path: Path
) -> None:
    known = np.load(DATA / f"{name.split('.')[0]}.npz")
    path = converted(DATA / name, tmp_path, style)
    got = run(str(path), {"x": known["x"]})["y"]
    step = last_scale(path)
    assert np.ptp(known["y"]) > 5 * step
    assert np.abs(got - known["y"]).max() <= 1.01 * step


@pytest.mark.parametrize("engine", ["x86", "qnnpack"])
def test_a_convolution_trained_with_its_normalization_computes_with_integers(
    engine: str, tmp_path: Path
) -> None:
    path = converted(DATA / f"torch_{engine}.torchscript.onnx", tmp_path, QuantFormat.QOperator)
    found = ops(path)
    assert found["QLinearConv"] == 2
    assert not found["BatchNormalization"] + found["Div"] + found["Conv"]


def test_the_trained_integers_of_a_normalized_convolution_stay(tmp_path: Path) -> None:
    source = onnx.load(DATA / "torch_x86.torchscript.onnx")
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    first = next(node for node in source.graph.node if node.op_type == "Conv")
    makers = {node.output[0]: node for node in source.graph.node}
    q = makers[makers[first.input[1]].input[0]]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(source)
    exposed.graph.output.add(
        name=q.output[0], type=onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT8, None)
    )
    known = np.load(DATA / "torch_x86.npz")
    want = run(exposed, {"x": known["x"]}, optimize=False)[q.output[0]]
    written = onnx.load(converted(source, tmp_path, QuantFormat.QOperator)).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.initializer}
    conv = next(node for node in written.node if node.op_type == "QLinearConv")
    np.testing.assert_array_equal(stored[conv.input[3]], want)
    np.testing.assert_allclose(stored[conv.input[4]], arrays[q.input[1]], rtol=1e-5)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_exports_of_tensorflow_keep_their_narrow_range(
    style: QuantFormat | QuantizationMode, tmp_path: Path
) -> None:
    trained = graphs.tf_cnn()
    shape = [d.dim_value or 2 for d in trained.graph.input[0].type.tensor_type.shape.dim]
    feeds = {trained.graph.input[0].name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    path = converted(trained, tmp_path, style)
    stored = [numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    weights = [array for array in stored if array.dtype == np.int8 and array.size > 8]
    assert weights
    assert min(int(array.min()) for array in weights) >= -127
    ((name, want),) = run(trained, feeds, optimize=False).items()
    got = run(str(path), feeds)[name]
    assert np.abs(got - want).max() <= 0.02 * np.abs(want).max() + 0.0501
