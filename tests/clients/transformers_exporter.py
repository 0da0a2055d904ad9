"""The ONNX exporter of Transformers with its quantizer, and ONNX Runtime's own helper for Transformers."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from checks import Checks, stand_in

stand_in()
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from onnxruntime.transformers.quantize_helper import QuantizeHelper  # noqa: E402
from small_bert import WORDS, classifier  # noqa: E402
from transformers.exporters import (  # noqa: E402
    OnnxConfig,
    OnnxExporter,
    OnnxRuntimeDynamicConfig,
    OnnxRuntimeQuantizer,
    OnnxRuntimeStaticConfig,
)

FOLDER = Path(tempfile.mkdtemp())
TOKENS = 12


def sample(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    ids = torch.randint(4, WORDS, (1, TOKENS))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def exported(name: str, quantizer: Any = None) -> Path:
    made = OnnxExporter().export(classifier(), sample(0), config=OnnxConfig(quantizer=quantizer))
    made.save_pretrained(FOLDER / name)
    (path,) = (FOLDER / name).rglob("*.onnx")
    return path


def results(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    feeds = [{k: v.numpy() for k, v in sample(seed).items() if k in names} for seed in range(4)]
    return np.concatenate([session.run(None, one)[0] for one in feeds])


FLOAT = exported("float")
EXPECTED = results(FLOAT)


def compared(path: Path, operator: str) -> str:
    found = {n.op_type for n in onnx.load(path, load_external_data=False).graph.node}
    assert operator in found, f"the model has {sorted(found)}"
    error = float(np.abs(results(path) - EXPECTED).max() / np.abs(EXPECTED).max())
    assert error < 0.15, f"the results differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


def quantized(name: str, config: Any, operator: str) -> str:
    """Export with a quantizer, as the documentation of Transformers shows it."""
    data = [sample(seed) for seed in range(6)]
    return compared(exported(name, OnnxRuntimeQuantizer(config, calibration_dataset=data)), operator)


def helped() -> str:
    """Quantize with the helper that the runtime's scripts for BERT and GPT-2 use."""
    made = FOLDER / "helped" / "model.onnx"
    QuantizeHelper.quantize_onnx_model(str(FLOAT), str(made), use_external_data_format=True)
    return compared(made, "MatMulInteger")


checks = Checks("transformers", "onnxruntime")
cases = {
    "static": (OnnxRuntimeStaticConfig(), "DequantizeLinear"),
    "static, per channel": (OnnxRuntimeStaticConfig(per_channel=True), "DequantizeLinear"),
    "static, MatMul alone": (OnnxRuntimeStaticConfig(op_types_to_quantize=["MatMul"]), "DequantizeLinear"),
    "dynamic": (OnnxRuntimeDynamicConfig(), "MatMulInteger"),
}
for what, (config, operator) in cases.items():
    checks.run(f"exporter, {what}", partial(quantized, what, config, operator))
checks.run("onnxruntime.transformers.quantize_helper", helped)
checks.finish()
