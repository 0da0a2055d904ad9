"""The model builder of onnxruntime-genai on a small Llama made in code: 4 and 8 bits, three algorithms."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from functools import partial
from pathlib import Path

from checks import Checks, stand_in

stand_in()
os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
WORDS, HIDDEN, HEADS, LAYERS = 128, 64, 4, 2
IDS = np.array([[3, 17, 42, 99, 5, 61]], np.int64)


def checkpoint() -> Path:
    """Write a Llama with two layers and its tokenizer, as ``save_pretrained`` does."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    folder = FOLDER / "float"
    LlamaForCausalLM(config).eval().save_pretrained(folder)
    vocabulary = {f"w{i}": i for i in range(WORDS - 1)} | {"<unk>": WORDS - 1}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="w1", eos_token="w2"
    ).save_pretrained(folder)
    return folder


MODEL = checkpoint()


def logits(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    feeds = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            feeds[value.name] = IDS
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones_like(IDS)
        elif value.name == "position_ids":
            feeds[value.name] = np.arange(IDS.shape[1])[None]
        else:  # an empty cache of keys or values
            feeds[value.name] = np.zeros((1, HEADS, 0, HIDDEN // HEADS), np.float32)
    return session.run(["logits"], feeds)[0]


def build(target: Path, precision: str, *options: str) -> Path:
    """Build as the command line does."""
    sys.argv = ["builder", "-i", str(MODEL), "-o", str(target), "-p", precision, "-e", "cpu"]
    sys.argv += ["-c", str(FOLDER / "cache"), *(("--extra_options", *options) if options else ())]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")
    return target / "model.onnx"


EXPECTED = logits(build(FOLDER / "fp32", "fp32"))


def built(number: int, precision: str, operators: set[str], most: float, *options: str) -> str:
    """Build a quantized model, and compare its logits with those of the float one."""
    path = build(FOLDER / str(number), precision, *options)
    model = onnx.load(path, load_external_data=False)
    found = {node.op_type for node in model.graph.node}
    assert operators <= found, f"the model has {sorted(found)}"
    error = float(np.linalg.norm(logits(path) - EXPECTED) / np.linalg.norm(EXPECTED))
    assert error < most, f"the logits differ by {error:.3f} of their norm"
    return f"relative error {error:.3f}"


NBITS = {"MatMulNBits"}
CASES = {
    "int4, default": ("int4", NBITS, 0.4, ()),
    "int4, default, asymmetric": ("int4", NBITS, 0.4, ("is_symmetric=false",)),
    "int4, rtn": ("int4", NBITS, 0.4, ("algo_config=rtn",)),
    "int4, k_quant": ("int4", NBITS, 0.4, ("algo_config=k_quant",)),
    "int4, k_quant_mixed": ("int4", NBITS, 0.4, ("algo_config=k_quant_mixed",)),
    "int4, QDQ": ("int4", {"DequantizeLinear"}, 0.4, ("use_qdq=true",)),
    "int4, MatMul and Gather": (
        "int4",
        {"MatMulNBits", "GatherBlockQuantized"},
        0.4,
        ("op_types_to_quantize=MatMul/Gather",),
    ),
    "int8, default": ("int8", NBITS, 0.05, ()),
}

checks = Checks("onnxruntime-genai", "transformers")
for number, (what, (precision, operators, most, options)) in enumerate(CASES.items()):
    checks.run(what, partial(built, number, precision, operators, most, *options))
checks.finish()
