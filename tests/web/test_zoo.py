"""Variants of the zoo's sentence encoder and language model in transformers.js, beside float in Python."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

import octavo
from octavo.folders.variants import PRESETS, VARIANTS
from web.clients import MODULES, missing
from web.test_web import NEW_TOKENS, SCRIPTS, cosine, in_node

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
BUILT = Path(os.environ.get("OCTAVO_ZOO") or ZOO.parents[1] / "zoo_models")
TEXTS = ["A man is slicing an onion in the kitchen.", "The plane took off an hour late."]
PROMPTS = ["The capital of France is", "Water boils when it is"]
BERT = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 384, "vocab_size": 30522}
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 576, "vocab_size": 49152,
    "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "head_dim": 64,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


def source(name: str, folder: Path, config: dict[str, Any]) -> Path:
    """A model of the zoo as a folder that transformers.js reads."""
    if not (BUILT / name / "model.onnx").exists():
        pytest.skip(f"{name} is not built in {BUILT}")
    folder.mkdir()
    for file in ("model.onnx", "tokenizer.json"):
        (folder / file).symlink_to((BUILT / name / file).resolve())
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def made(folder: Path, tokenizer: str, data: Path, **more: Any) -> octavo.FolderResult:
    """The variants of a folder, with the class of its tokenizer."""
    result = octavo.quantize_folder(
        folder, data, output=folder.with_name("model"), seconds=0, threads=1, samples=9, **more
    )
    files = folder.with_name("model")
    if not (files / "tokenizer.json").exists():  # a link that leads out of the folder is not copied
        (files / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (files / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer}))
    return result


def ids_of(folder: Path, text: str) -> Any:
    """The tokens of a text."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    return np.int64([tokenizer.encode(text).ids])


def test_transformers_js_runs_every_variant_of_the_sentence_encoder(tmp_path: Path) -> None:
    folder = source("all_minilm_l6_v2", tmp_path / "float", BERT)
    result = made(folder, "BertTokenizer", ZOO / "data/stsb/calib.txt")
    names = [one.variant.name for one in result.written]
    assert names == list(PRESETS["web"])
    answers = in_node(
        str(SCRIPTS / "client.mjs"), str(MODULES), str(tmp_path), "model", "feature-extraction",
        ",".join(names), *TEXTS,
    )  # fmt: skip
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    for dtype, found in answers.items():
        for text, states in zip(TEXTS, found, strict=True):
            ids = ids_of(folder, text)
            feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
            due = session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})[0]
            means = [np.reshape(one, (-1, due.shape[-1])).mean(0) for one in (states, due)]
            least = 0.999999 if dtype == "fp32" else VARIANTS[dtype].floor.cosine
            assert cosine(*means) >= least, dtype


def test_transformers_js_writes_text_with_every_variant_of_the_language_model(tmp_path: Path) -> None:
    folder = source("smollm2_135m_kv", tmp_path / "float", LLAMA)
    result = made(folder, "GPT2Tokenizer", ZOO / "data/wikitext2/valid.txt", variants="fp32,fp16,q8,q4")
    names = [one.variant.name for one in result.written]
    assert names == ["fp32", "fp16", "q8", "q4"]
    answers = in_node(
        str(SCRIPTS / "client.mjs"), str(MODULES), str(tmp_path), "model", "text-generation",
        ",".join(names), *PROMPTS,
    )  # fmt: skip
    session = ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    empty = {
        one.name: np.zeros((1, 3, 0, 64), np.float32)
        for one in session.get_inputs()
        if one.name.startswith("past")
    }
    for place, text in enumerate(PROMPTS):
        tokens = ids_of(folder, text)
        count = tokens.size
        for _ in range(NEW_TOKENS):
            feed = {
                "input_ids": tokens, "attention_mask": np.ones_like(tokens),
                "position_ids": np.arange(tokens.size)[None], **empty,
            }  # fmt: skip
            (logits,) = session.run(["logits"], feed)
            tokens = np.append(tokens, [[int(logits[0, -1].argmax())]], axis=1)
        for dtype, found in answers.items():
            assert found[place][:count] == tokens[0, :count].tolist(), dtype
            same = found[place] == tokens[0].tolist()
            assert same if dtype in ("fp32", "fp16") else len(found[place]) == tokens.size, dtype
