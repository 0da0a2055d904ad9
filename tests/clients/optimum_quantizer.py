"""Hugging Face Optimum's ORTQuantizer on a small BERT: dynamic and static presets, and its calibration."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from checks import Checks, stand_in

stand_in()
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from optimum.onnxruntime import ORTQuantizer  # noqa: E402
from optimum.onnxruntime.configuration import (  # noqa: E402
    AutoCalibrationConfig,
    AutoQuantizationConfig,
    QuantizationConfig,
)
from transformers import BertConfig, BertForSequenceClassification  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
WORDS, LENGTH = 200, 16


def exported() -> Path:
    """Write a BERT with two layers, as ``torch.onnx.export`` gives it."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        num_labels=3,
    )
    model = BertForSequenceClassification(config).eval()
    folder = FOLDER / "float"
    model.save_pretrained(folder)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    example = tuple(torch.ones(1, LENGTH, dtype=torch.int64) for _ in names)
    axes = {name: {0: "batch", 1: "tokens"} for name in names}
    torch.onnx.export(
        model,
        example,
        folder / "model.onnx",
        input_names=names,
        output_names=["logits"],
        dynamic_axes=axes,
        opset_version=17,
        dynamo=False,
    )
    return folder


def samples(count: int = 8) -> Dataset:
    """Sentences of random tokens, some of them padded."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(4, LENGTH + 1, count)
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    return Dataset.from_dict(
        {
            "input_ids": (rng.integers(0, WORDS, (count, LENGTH)) * mask).tolist(),
            "attention_mask": mask.tolist(),
            "token_type_ids": np.zeros_like(mask).tolist(),
        }
    )


MODEL = exported()
DATA = samples()


def logits(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: np.array(DATA[name]) for name in names})[0]


EXPECTED = logits(MODEL / "model.onnx")


def quantized(config: QuantizationConfig, calibration: str | None = None) -> str:
    """Quantize as Optimum's documentation shows it, and compare the results with those of float."""
    quantizer = ORTQuantizer.from_pretrained(MODEL)
    ranges = None
    if calibration is not None:
        found = {
            "minmax": AutoCalibrationConfig.minmax,
            "entropy": AutoCalibrationConfig.entropy,
            "percentiles": AutoCalibrationConfig.percentiles,
        }[calibration](DATA)
        ranges = quantizer.fit(
            dataset=DATA,
            calibration_config=found,
            onnx_augmented_model_name=str(FOLDER / "augmented.onnx"),
            operators_to_quantize=config.operators_to_quantize,
        )
    made = quantizer.quantize(config, FOLDER / "quantized", calibration_tensors_range=ranges)
    found = logits(Path(made) / "model_quantized.onnx")
    error = float(np.abs(found - EXPECTED).max() / np.abs(EXPECTED).max())
    assert error < 0.3, f"the logits differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


def dynamic(preset: str) -> str:
    make = getattr(AutoQuantizationConfig, preset)
    return quantized(make(is_static=False, per_channel=preset == "avx512_vnni"))


def static(preset: str, method: str) -> str:
    if preset == "tensorrt":
        return quantized(AutoQuantizationConfig.tensorrt(per_channel=False), method)
    return quantized(AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=False), method)


checks = Checks("optimum", "optimum-onnx", "transformers")
for preset in ("avx2", "avx512_vnni", "arm64"):
    checks.run(f"dynamic, {preset}", partial(dynamic, preset))
for preset in ("avx512_vnni", "tensorrt"):
    for method in ("minmax", "entropy", "percentiles"):
        checks.run(f"static, {preset}, {method}", partial(static, preset, method))
checks.finish()
