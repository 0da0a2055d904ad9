"""sentence-transformers: its exporter of quantized encoders, which calls ``quantize_dynamic`` by Optimum."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

from checks import Checks, stand_in

stand_in()
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
from sentence_transformers import (  # noqa: E402
    SentenceTransformer,
    export_dynamic_quantized_onnx_model,
    models,
)
from small_bert import classifier, tokenizer  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
TEXTS = ["w1 w2 w3", "w7 w8 w9 w10 w11", "w20", "w42 w40 w38 w36"]


def encoder() -> SentenceTransformer:
    """Return a BERT with two layers and a mean over its tokens, as the ONNX backend exports it."""
    classifier().bert.save_pretrained(FOLDER / "bert")
    tokenizer().save_pretrained(FOLDER / "bert")
    bert = models.Transformer(str(FOLDER / "bert"))
    whole = SentenceTransformer(modules=[bert, models.Pooling(bert.get_word_embedding_dimension())])
    whole.save(str(FOLDER / "encoder"))
    return SentenceTransformer(str(FOLDER / "encoder"), backend="onnx", local_files_only=True)


MODEL = encoder()
EXPECTED = MODEL.encode(TEXTS)


def quantized(preset: str) -> str:
    """Quantize as the documentation shows it, and compare the embeddings with those of float."""
    folder = FOLDER / preset
    MODEL.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(MODEL, preset, str(folder))
    (name,) = (
        path.name for path in (folder / "onnx").iterdir() if "quint8" in path.name or "qint8" in path.name
    )
    kept = {"file_name": f"onnx/{name}"}
    made = SentenceTransformer(str(folder), backend="onnx", model_kwargs=kept, local_files_only=True)
    error = float(np.abs(made.encode(TEXTS) - EXPECTED).max() / np.abs(EXPECTED).max())
    assert 0.0 < error < 0.3, f"the embeddings differ by {error:.3f} of the largest"
    return f"relative error {error:.3f}"


checks = Checks("sentence-transformers", "optimum-onnx", "transformers")
for preset in ("arm64", "avx2", "avx512", "avx512_vnni"):
    checks.run(f"dynamic, {preset}", partial(quantized, preset))
checks.finish()
