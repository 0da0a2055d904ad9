"""The converter of Transformers up to release 4: it gives the quantizer class True and False for types."""

from __future__ import annotations

import tempfile
from pathlib import Path

from checks import Checks, stand_in

stand_in()

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from small_bert import WORDS, classifier  # noqa: E402
from transformers.convert_graph_to_onnx import quantize  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())


def converted() -> str:
    """Export a small BERT, and quantize it as ``python -m transformers.convert_graph_to_onnx --quantize``."""
    path = FOLDER / "model.onnx"
    example = (torch.ones(1, 16, dtype=torch.int64),)
    torch.onnx.export(
        classifier(),
        example,
        path,
        input_names=["input_ids"],
        output_names=["y"],
        opset_version=17,
        dynamo=False,
    )
    made = quantize(path)
    found = {n.op_type for n in onnx.load(made).graph.node}
    assert "MatMulInteger" in found, f"the model has {sorted(found)}"
    feeds = {"input_ids": np.random.default_rng(0).integers(4, WORDS, (1, 16))}
    want, got = (onnxruntime.InferenceSession(one).run(None, feeds)[0] for one in (path, made))
    error = float(np.abs(got - want).max() / np.abs(want).max())
    assert error < 0.15, f"the results differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


checks = Checks("transformers")
checks.run("convert_graph_to_onnx.quantize", converted)
checks.finish()
