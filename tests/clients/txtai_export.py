"""The pipeline of txtai that exports a Transformer to ONNX and quantizes it."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from checks import Checks, stand_in

stand_in()
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from small_bert import save, tokenizer  # noqa: E402
from txtai.pipeline import HFOnnx  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
MODEL = str(save(FOLDER / "float"))
TEXTS = ["w5 w17 w99", "w3 w120 w61 w8 w42", "w190"]


def results(model: str | bytes) -> np.ndarray:
    session = onnxruntime.InferenceSession(model)
    names = {value.name for value in session.get_inputs()}
    feeds = tokenizer()(TEXTS, padding=True, return_tensors="np")
    return session.run(None, {k: np.int64(v) for k, v in feeds.items() if k in names})[0]


def exported(task: str, in_file: bool) -> str:
    """Export with and without quantization, to a file or to bytes, and compare the results."""
    outputs = [str(FOLDER / f"{number}.onnx") if in_file else None for number in range(2)]
    exact, made = (HFOnnx()(MODEL, task, out, quantize=bool(i)) for i, out in enumerate(outputs))
    found = {n.op_type for n in (onnx.load(made) if in_file else onnx.load_from_string(made)).graph.node}
    assert "MatMulInteger" in found, f"the model has {sorted(found)}"
    want, got = results(exact), results(made)
    error = float(np.abs(got - want).max() / np.abs(want).max())
    assert error < 0.15, f"the results differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


checks = Checks("txtai", "transformers")
for task in ("default", "text-classification", "pooling"):
    checks.run(f"HFOnnx, {task}, in its file", partial(exported, task, True))
checks.run("HFOnnx, text-classification, bytes", partial(exported, "text-classification", False))
checks.finish()
