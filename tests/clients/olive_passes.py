"""Olive's ONNX passes on a small network: static, dynamic, QNN's configuration, preparation and bnb4.

In Olive 0.13 only the conversion of adapters calls stock for blocks of 4 bits; its passes for models do not.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from checks import Checks, stand_in

stand_in()

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from olive.cli.convert_adapters import ConvertAdaptersCommand  # noqa: E402
from olive.data.config import DataComponentConfig, DataConfig  # noqa: E402
from olive.data.registry import Registry  # noqa: E402
from olive.model import ONNXModelHandler  # noqa: E402
from olive.passes.olive_pass import create_pass_from_dict  # noqa: E402
from olive.passes.onnx.bnb_quantization import OnnxBnb4Quantization  # noqa: E402
from olive.passes.onnx.quantization import (  # noqa: E402
    OnnxDynamicQuantization,
    OnnxQuantization,
    OnnxStaticQuantization,
)
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
SHAPE = [1, 3, 16, 16]


def network() -> Path:
    """Write Conv → Relu → Conv → Add → GlobalAveragePool → Flatten → MatMul → Add → Softmax."""
    rng = np.random.default_rng(0)
    consts = {
        "w": rng.normal(size=(8, 3, 3, 3)) / 5,
        "b": rng.normal(size=8) / 10,
        "v": rng.normal(size=(8, 8, 3, 3)) / 8,
        "d": rng.normal(size=8) / 10,
        "m": rng.normal(size=(8, 64)),
        "c": rng.normal(size=64) / 10,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "v", "d"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r"], ["s"], "add"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "m"], ["l"], "product"),
        helper.make_node("Add", ["l", "c"], ["y"], "bias"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in consts.items()],
    )
    path = FOLDER / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


MODEL = network()
SAMPLE = {"x": np.random.default_rng(1).random(SHAPE).astype(np.float32)}


class Samples(torch.utils.data.Dataset):
    """Eight random images without labels that matter."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], int]:
        torch.manual_seed(index)
        return {"x": torch.rand(SHAPE[1:])}, 0


@Registry.register_dataset()
def random_images(**_: Any) -> Samples:
    """Return the dataset that the passes calibrate with."""
    return Samples()


DATA = DataConfig(
    name="random_images",
    load_dataset_config=DataComponentConfig(type="random_images"),
    pre_process_data_config=DataComponentConfig(type="skip_pre_process"),
    post_process_data_config=DataComponentConfig(type="skip_post_process"),
    dataloader_config=DataComponentConfig(params={"batch_size": 1}),
)


def outputs(path: str | Path) -> np.ndarray:
    return onnxruntime.InferenceSession(path).run(None, SAMPLE)[0]


EXPECTED = outputs(MODEL)


def passed(kind: type, number: str, operators: set[str], **settings: Any) -> str:
    """Run one pass, compare the results with those of float, and look for the operators it should write."""
    one = create_pass_from_dict(kind, settings, disable_search=True)
    made = one.run(ONNXModelHandler(str(MODEL)), str(FOLDER / number))
    found = {node.op_type for node in onnx.load(made.model_path, load_external_data=False).graph.node}
    assert operators <= found, f"the model has {sorted(found)}"
    error = float(np.abs(outputs(made.model_path) - EXPECTED).max() / np.abs(EXPECTED).max())
    assert error < 0.15, f"the outputs differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


PAIRS = {"QuantizeLinear", "DequantizeLinear"}
CASES: dict[str, tuple[type, set[str], dict[str, Any]]] = {
    "dynamic, int8": (OnnxDynamicQuantization, {"MatMulInteger"}, {"precision": "int8"}),
    "dynamic, uint8, without preparation": (
        OnnxDynamicQuantization,
        {"MatMulInteger"},
        {"precision": "uint8", "quant_preprocess": False},
    ),
    "static, QDQ": (OnnxStaticQuantization, PAIRS, {"quant_format": "QDQ"}),
    "static, QDQ, per channel": (OnnxStaticQuantization, PAIRS, {"quant_format": "QDQ", "per_channel": True}),
    "static, QDQ, 16-bit activations": (
        OnnxStaticQuantization,
        PAIRS,
        {"quant_format": "QDQ", "activation_type": "uint16", "precision": "uint8"},
    ),
    "static, QDQ, entropy": (OnnxStaticQuantization, PAIRS, {"calibrate_method": "Entropy"}),
    "static, QDQ, percentile": (OnnxStaticQuantization, PAIRS, {"calibrate_method": "Percentile"}),
    "static, QDQ, limited set of operators": (
        OnnxStaticQuantization,
        PAIRS,
        {"quant_format": "QDQ", "prepare_qdq_config": False},
    ),
    "static, QOperator": (
        OnnxStaticQuantization,
        {"QLinearConv", "QGemm"},  # preparation fuses MatMul and Add
        {"quant_format": "QOperator", "activation_type": "uint8", "precision": "uint8"},
    ),
    "OnnxQuantization, static": (OnnxQuantization, PAIRS, {"quant_mode": "static"}),
}

checks = Checks("olive-ai")
for number, (what, (kind, operators, settings)) in enumerate(CASES.items()):
    if kind is not OnnxDynamicQuantization:
        settings["data_config"] = DATA
    checks.run(what, partial(passed, kind, str(number), operators, **settings))
checks.run(
    "bnb4, NF4",
    partial(passed, OnnxBnb4Quantization, "bnb4", {"MatMulBnb4"}, precision="nf4", quantized_modules=None),
)


def adapter() -> str:
    """Quantize the weight of an adapter to 4 bits, in blocks of 32."""
    weight = np.random.default_rng(2).normal(size=(64, 16)).astype(np.float32)
    packed, scales, _ = ConvertAdaptersCommand.int4_block_quant(weight.copy(), 32, True)
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(16, 2, 32).astype(np.float32) - 8
    error = float(np.abs((values * scales.reshape(16, 2, 1)).reshape(16, 64).T - weight).max())
    assert error <= np.abs(scales).max(), f"the weights differ by {error:.3f}"
    return f"largest error {error:.3f}"


checks.run("adapters in 4 bits", adapter)
checks.finish()
