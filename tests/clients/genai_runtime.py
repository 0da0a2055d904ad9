"""onnxruntime-genai generates greedy text from what Octavo writes: of a small decoder, and SmolLM2 if built.

SmolLM2 is ``$OCTAVO_ZOO/smollm2_135m_genai``. Greedy text is a hard judge: one token that differs changes all
that follow, and in every text of a small model there is a step where the two best tokens are almost even.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from checks import Checks

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import onnx
import onnxruntime_genai
from decoders import HEADS, LAYERS, SIZE, VOCABULARY, WIDTH, genai_decoder, ids
from tokenizers import Tokenizer

import octavo

FOLDER = Path(tempfile.mkdtemp())
NEW, PROMPTS = 32, 20
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "How do plants make their food?",
    "Who wrote Romeo and Juliet?",
    "What is the difference between weather and climate?",
    "List five fruits.",
    "List the days of the week.",
    "Give me three tips for better sleep.",
    "Name the planets of the solar system in order.",
    "Make a shopping list for pancakes.",
    "Write a Python function that adds two numbers.",
    "Write a Python loop that prints the numbers from 1 to 10.",
    "How do I reverse a string in Python?",
    "Write an SQL query that selects all rows of the table users.",
    "Write a JavaScript function that returns the larger of two numbers.",
    "Count from 1 to 20.",
    "Count down from 10 to 1.",
    "What is 7 plus 5?",
    "Write the even numbers up to 20.",
    "Repeat the word hello ten times.",
)
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def config(*, layers: int, heads: int, key_heads: int, size: int, width: int, words: int) -> dict[str, Any]:
    """What genai_config.json says of a decoder."""
    names = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
    decoder = {
        "session_options": {"provider_options": [], "intra_op_num_threads": 1},
        "filename": "model.onnx",
        "head_size": size,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "num_hidden_layers": layers,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **{f"past_{part}_names": name for part, name in names.items()},
        },
        "outputs": {
            "logits": "logits",
            **{f"present_{part}_names": f"present.%d.{part}" for part in names},
        },
    }
    model = {
        "type": "llama", "vocab_size": words, "context_length": 512, "decoder": decoder,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    return {"model": model, "search": {"max_length": 512, "past_present_share_buffer": False}}


def texts(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """The most likely tokens after each prompt."""
    model = onnxruntime_genai.Model(str(folder))
    found = []
    for prompt in prompts:
        params = onnxruntime_genai.GeneratorParams(model)
        params.set_search_options(max_length=len(prompt) + NEW, do_sample=False)
        generator = onnxruntime_genai.Generator(model, params)
        generator.append_tokens(np.array(prompt, np.int32))
        new: list[int] = []
        while not generator.is_done() and len(new) < NEW:
            generator.generate_next_token()
            new.append(int(generator.get_next_tokens()[0]))
        found.append(new)
    return found


class Case:
    """A float model, its prompts, and what it answers."""

    def __init__(self, name: str, model: Path, settings: dict[str, Any], prompts: list[list[int]]) -> None:
        self.name, self.model, self.settings, self.prompts = name, model, settings, prompts
        self.expected = texts(self.folder("float", lambda path: shutil.copyfile(model, path)), prompts)

    def folder(self, name: str, write: Callable[[Path], object]) -> Path:
        """A folder with a model as onnxruntime-genai opens it."""
        folder = FOLDER / self.name / name
        folder.mkdir(parents=True)
        (folder / "genai_config.json").write_text(json.dumps(self.settings), encoding="utf-8")
        write(folder / "model.onnx")
        return folder

    def same(self, least: int, options: dict[str, Any]) -> str:
        """Quantize, generate, and count the texts that are float's to the end."""
        name = "-".join(map(str, options.values())).replace(":", "-")
        folder = self.folder(name, lambda path: octavo.quantize(self.model, output=path, **options))
        found = texts(folder, self.prompts)
        assert all(found), "a text is empty"
        same = sum(own == wanted for own, wanted in zip(found, self.expected, strict=True))
        assert same >= least, f"{same} of {len(found)} texts are those of float"
        return f"{same} of {len(found)} texts of {NEW} tokens are those of float"


def small() -> Case:
    """A decoder with seeded weights."""
    path = FOLDER / "small.onnx"
    onnx.save(genai_decoder(), path)
    settings = config(layers=LAYERS, heads=HEADS, key_heads=HEADS, size=SIZE, width=WIDTH, words=VOCABULARY)
    return Case("small", path, settings, [ids(seed=seed)[0].tolist() for seed in range(PROMPTS)])


def smollm2(folder: Path) -> Case:
    """SmolLM2-135M, asked what people ask."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    start, end = (tokenizer.token_to_id(f"<|im_{one}|>") for one in ("start", "end"))

    def said(role: str, text: str) -> list[int]:
        return [start, *tokenizer.encode(f"{role}\n{text}").ids, end, *tokenizer.encode("\n").ids]

    prompts = [
        [*said("system", SYSTEM), *said("user", one), start, *tokenizer.encode("assistant\n").ids]
        for one in QUESTIONS
    ]
    settings = config(layers=30, heads=9, key_heads=3, size=64, width=576, words=49152)
    return Case("smollm2", folder / "model.onnx", settings, prompts)


MOST = PROMPTS // 2 + 1
LEAST = {"small: weights in float16": MOST, "smollm2: 8 bits in blocks, level 0": MOST}
WAYS: dict[str, dict[str, Any]] = {
    "weights in float16": {"float_type": "fp16:storage"},
    "8 bits in blocks, level 0": {"weights": "int8", "per": "block:32", "accuracy_level": 0},
    "8 bits in blocks, level 4": {"weights": "int8", "per": "block:32"},
    "8 bits, dynamic": {"recipe": "W8"},
    "4 bits": {"weights": "int4"},
}

checks = Checks("onnxruntime-genai")
cases = [small()]
zoo = Path(os.environ.get("OCTAVO_ZOO", ".")) / "smollm2_135m_genai"
if (zoo / "model.onnx").is_file():
    cases.append(smollm2(zoo))
for case in cases:
    for way, options in WAYS.items():
        what = f"{case.name}: {way}"
        checks.run(what, partial(case.same, LEAST.get(what, 0), options))
checks.finish()
