"""Scripts as users write them after the public examples: image classification, detection, BERT and GPT-2.

Each imports from ``onnxruntime.quantization``. Models and images are made in code.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from checks import Checks, stand_in

stand_in()

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnxruntime.quantization import (  # noqa: E402
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantizationMode,
    QuantType,
    create_calibrator,
    quantize_dynamic,
    quantize_static,
    write_calibration_table,
)
from onnxruntime.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer  # noqa: E402
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer  # noqa: E402
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer  # noqa: E402
from onnxruntime.quantization.registry import IntegerOpsRegistry  # noqa: E402
from PIL import Image  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
PREPROCESS = importlib.import_module("onnxruntime.quantization.preprocess").__name__
SIZE, TOKENS, WIDTH, WORDS = 32, 8, 32, 50


def saved(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], consts: dict[str, Any]) -> Path:
    graph = helper.make_graph(
        nodes, name, inputs, outputs, [numpy_helper.from_array(array, key) for key, array in consts.items()]
    )
    path = FOLDER / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def convolutions(name: str, results: int) -> Path:
    """Write a small image network: three Convs, a residual Add, pooling and a linear layer."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["c2", "r1"], ["a"], "add"),
        helper.make_node("Relu", ["a"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "gemm", transB=1),
    ]
    consts = {
        "w1": 4 * normal(16, 3, 3, 3),
        "b1": normal(16, seed=1),
        "w2": 4 * normal(16, 16, 3, 3, seed=2),
        "b2": normal(16, seed=3),
        "w3": 4 * normal(results, 16, seed=4),
        "b3": normal(results, seed=5),
    }
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIZE, SIZE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, results])
    return saved(name, nodes, [x], [y], consts)


def transformer(name: str) -> Path:
    """Write an embedding, one layer of attention with LayerNormalization and Gelu, and a head."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["e"], "embedding"),
        *(helper.make_node("MatMul", ["e", f"w{k}"], [k], f"/{k}/MatMul") for k in "qkv"),
        helper.make_node("Transpose", ["k"], ["kt"], "transpose", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], "/scores/MatMul"),
        helper.make_node("Softmax", ["s"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"], "/context/MatMul"),
        helper.make_node("Add", ["o", "e"], ["r"], "residual"),
        helper.make_node("LayerNormalization", ["r", "gamma", "beta"], ["n"], "norm", axis=-1),
        helper.make_node("MatMul", ["n", "wf"], ["h"], "/mlp/MatMul"),
        helper.make_node("Relu", ["h"], ["g"], "relu"),
        helper.make_node("MatMul", ["g", "wo"], ["logits"], "/head/MatMul"),
    ]
    consts = {f"w{k}": 2 * normal(WIDTH, WIDTH, seed=i) for i, k in enumerate("qkvf")}
    consts |= {"wo": 2 * normal(WIDTH, WORDS, seed=7), "table": normal(WORDS, WIDTH, seed=8) * 4}
    consts |= {"gamma": np.ones(WIDTH, np.float32), "beta": np.zeros(WIDTH, np.float32)}
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, TOKENS])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, TOKENS, WORDS])
    return saved(name, nodes, [ids], [logits], consts)


def images(count: int = 6) -> Path:
    """Write a folder of images."""
    folder = FOLDER / "images"
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(3)
    for number in range(count):
        pixels = rng.integers(0, 256, (SIZE + 8, SIZE + 4, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def far(model: Path, quantized: Path, samples: list[dict[str, np.ndarray]], most: float) -> str:
    worst, sessions = 0.0, [onnxruntime.InferenceSession(path) for path in (model, quantized)]
    for sample in samples:
        want, got = (session.run(None, sample)[0] for session in sessions)
        worst = max(worst, float(np.abs(want - got).max() / np.abs(want).max()))
    assert worst < most, f"the outputs differ by {worst:.3f} of the largest"
    return f"relative error {worst:.3f}"


class ImageReader(CalibrationDataReader):
    """Reads a folder of images, as the example for image classification does."""

    def __init__(self, folder: Path, model_path: Path) -> None:
        session = onnxruntime.InferenceSession(model_path, None)
        _, _, height, width = session.get_inputs()[0].shape
        self.input_name = session.get_inputs()[0].name
        self.images = []
        for path in sorted(folder.iterdir()):
            pixels = np.float32(Image.open(path).resize((width, height))) - np.array([123.68, 116.78, 103.94])
            self.images.append((pixels.transpose(2, 0, 1)[None] / 58).astype(np.float32))
        self.datasize = len(self.images)
        self.enum_data = None
        self.start = 0
        self.end = self.datasize

    def get_next(self) -> dict[str, np.ndarray] | None:
        if self.enum_data is None:
            self.enum_data = iter([{self.input_name: image} for image in self.images[self.start : self.end]])
        return next(self.enum_data, None)

    def rewind(self) -> None:
        self.enum_data = None

    def set_range(self, start_index: int, end_index: int) -> None:
        self.start, self.end, self.enum_data = start_index, end_index, None

    def __len__(self) -> int:
        return self.datasize


def classification(style: QuantFormat, per_channel: bool) -> str:
    """``python -m onnxruntime.quantization.preprocess``, then ``quantize_static`` with a reader of images."""
    model, prepared, made = (
        convolutions("classifier", 10),
        FOLDER / "infer.onnx",
        FOLDER / "classifier_q.onnx",
    )
    sys.argv = ["preprocess", "--input", str(model), "--output", str(prepared)]
    try:
        runpy.run_module(PREPROCESS, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code
    reader = ImageReader(images(), prepared)
    quantize_static(
        prepared,
        made,
        reader,
        quant_format=style,
        per_channel=per_channel,
        weight_type=QuantType.QInt8,
    )
    return far(model, made, [{"x": image} for image in reader.images], 0.15)


def detection() -> str:
    """Calibrate in strides with CUDA requested, and write the tables that TensorRT reads."""
    model = convolutions("detector", 24)
    reader = ImageReader(images(), model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrator = create_calibrator(
            str(model), [], augmented_model_path=str(FOLDER / "augmented_model.onnx")
        )
        calibrator.set_execution_providers(["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        assert any("CUDAExecutionProvider" in str(one.message) for one in caught), "no warning of CUDA"
    for start in range(0, len(reader), 2):
        reader.set_range(start_index=start, end_index=start + 2)
        calibrator.collect_data(reader)
    ranges = calibrator.compute_data()
    write_calibration_table({name: data.range_value for name, data in ranges.items()}, str(FOLDER))
    table = (FOLDER / "calibration.cache").read_text().split("\n")
    assert {line.rsplit(" ", 1)[0] for line in table if line} == set(ranges.keys())
    assert json.loads((FOLDER / "calibration.json").read_text())
    return f"{len(ranges.keys())} tensors in the table"


class TokenReader(CalibrationDataReader):
    """Random sentences."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.samples = [{"input_ids": rng.integers(0, WORDS, (1, TOKENS))} for _ in range(6)]
        self.left = iter(self.samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def bert(method: CalibrationMethod) -> str:
    """Ranges by a calibrator, then the quantizer class with the options of the example for TensorRT."""
    model, reader = transformer("bert"), TokenReader()
    operators = ["MatMul", "Add"]
    calibrator = create_calibrator(
        str(model), operators, str(FOLDER / "augmented_bert.onnx"), method, extra_options={"symmetric": True}
    )
    calibrator.set_execution_providers(["CUDAExecutionProvider"])
    calibrator.collect_data(reader)
    ranges = calibrator.compute_data()
    quantizer = QDQQuantizer(
        onnx.load(model),
        True,
        False,
        QuantType.QInt8,
        QuantType.QInt8,
        ranges,
        [],
        [],
        operators,
        {
            "ActivationSymmetric": True,
            "AddQDQPairToWeight": True,
            "OpTypesToExcludeOutputQuantization": operators,
            "DedicatedQDQPair": True,
            "QDQOpTypePerChannelSupportToAxis": {"MatMul": 1},
        },
    )
    quantizer.quantize_model()
    made = FOLDER / "bert_qdq.onnx"
    quantizer.model.save_model_to_file(str(made), False)
    return far(model, made, reader.samples, 0.15)


def gpt2(weight: QuantType) -> str:
    """``quantize_dynamic`` as the example for GPT-2 calls it."""
    model, made = transformer("gpt2"), FOLDER / "gpt2_q.onnx"
    quantize_dynamic(str(model), str(made), weight_type=weight, use_external_data_format=False)
    assert made.stat().st_size < model.stat().st_size / 2
    return far(model, made, TokenReader().samples, 0.15)


def web(form: str) -> str:
    """The quantizer classes as scripts that convert models for browsers call them."""
    model, made = transformer("web"), FOLDER / f"web_{form}.onnx"
    found = onnx.load(model)
    if form == "q8":
        quantizer = ONNXQuantizer(
            found,
            per_channel=False,
            reduce_range=False,
            mode=QuantizationMode.IntegerOps,
            static=False,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=None,
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=list(IntegerOpsRegistry.keys()),
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )
        quantizer.quantize_model()
    elif form == "q4":
        older = importlib.import_module("onnxruntime.quantization.matmul_4bits_quantizer")
        quantizer = older.MatMul4BitsQuantizer(
            model=found, block_size=32, is_symmetric=True, accuracy_level=None
        )
        quantizer.process()
    else:
        quantizer = MatMulBnb4Quantizer(model=found, block_size=64, quant_type=MatMulBnb4Quantizer.NF4)
        quantizer.process()
    onnx.checker.check_model(quantizer.model.model, full_check=False)
    onnx.save(quantizer.model.model, made)
    return far(model, made, TokenReader().samples, {"q8": 0.15, "q4": 0.6, "bnb4": 1.0}[form])


checks = Checks("onnxruntime", "pillow")
for style in QuantFormat:
    for per_channel in (False, True):
        what = f"image classification, {style}{', per channel' if per_channel else ''}"
        checks.run(what, partial(classification, style, per_channel))
checks.run("object detection, calibration table, CUDA requested", detection)
for method in (CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile):
    checks.run(f"BERT, {method.name}", partial(bert, method))
for weight in (QuantType.QInt8, QuantType.QUInt8):
    checks.run(f"GPT-2, dynamic, {weight}", partial(gpt2, weight))
for form in ("q8", "q4", "bnb4"):
    checks.run(f"conversion for browsers, {form}", partial(web, form))
checks.finish()
