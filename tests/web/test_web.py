"""Variants in the clients that they are named for: transformers.js and onnxruntime-web."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from browser import chromium
from folders.small_folders import VOCABULARY, decoder, encoder_decoder, text_encoder, texts

import octavo
from octavo.folders.variants import PRESETS, VARIANTS
from web.clients import MODULES, ROOT, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")
TEXTS = ["word1 word2 word3", "word7 word4 word4 word90 word11"]
SCRIPTS = ROOT / "tests" / "web"
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the variants of an encoder, of a decoder with a cache, and of both, which are merged."""
    root = tmp_path_factory.mktemp("models")
    data = texts(root / "texts.txt")
    for name, build in (("encoder", text_encoder), ("decoder", decoder), ("both", encoder_decoder)):
        source = build(root / f"{name}-float")
        limit = 0.5 if name == "both" else None  # random weights: no text is certain
        result = octavo.quantize_folder(source, data, output=root / name, seconds=0, threads=1, max_kl=limit)
        assert not result.refused, str(result)
    return root


def ids_of(text: str) -> Any:
    """The tokens of a text."""
    return np.int64([[VOCABULARY.index(word) for word in text.split()]])


def float_states(models: Path, text: str) -> Any:
    """What the float encoder gives, in Python."""
    session = ort.InferenceSession(str(models / "encoder-float" / "model.onnx"))
    ids = ids_of(text)
    return session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0].ravel()


def float_tokens(models: Path, text: str) -> list[int]:
    """The tokens that the float decoder generates, in Python and without a cache."""
    session = ort.InferenceSession(str(models / "decoder-float" / "onnx" / "model.onnx"))
    empty = np.zeros((1, 2, 0, 32), np.float32)
    tokens = ids_of(text)
    for _ in range(NEW_TOKENS):
        feed = {
            "input_ids": tokens, "attention_mask": np.ones_like(tokens),
            "position_ids": np.arange(tokens.shape[1])[None],
            "past_key_values.0.key": empty, "past_key_values.0.value": empty,
        }  # fmt: skip
        last = session.run(["logits"], feed)[0][0, -1]
        tokens = np.append(tokens, [[int(np.argmax(last))]], axis=1)
        if tokens[0, -1] == VOCABULARY.index("</s>"):
            break
    return [int(token) for token in tokens[0]]


def float_answer(models: Path, text: str) -> list[int]:
    """The tokens that the float encoder and decoder write, in Python and without a cache."""
    encoder, writer = (
        ort.InferenceSession(str(models / "both-float" / f"{name}.onnx"))
        for name in ("encoder_model", "decoder_model")
    )
    ids, tokens = ids_of(text), [1]
    (states,) = encoder.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    while len(tokens) <= NEW_TOKENS and tokens[-1] != VOCABULARY.index("</s>"):
        feed = {"input_ids": np.int64([tokens]), "encoder_hidden_states": states}
        tokens.append(int(writer.run(["logits"], feed)[0][0, -1].argmax()))
    return tokens


def cosine(x: Any, y: Any) -> float:
    """Of two vectors."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def in_node(*arguments: str) -> Any:
    """What a script prints."""
    done = subprocess.run(["node", *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_transformers_js_loads_every_variant_of_an_encoder_by_its_dtype(models: Path) -> None:
    answers = in_node(
        str(SCRIPTS / "client.mjs"), str(MODULES), str(models), "encoder", "feature-extraction",
        ",".join(PRESETS["web"]), *TEXTS,
    )  # fmt: skip
    assert list(answers) == list(PRESETS["web"])
    for dtype, found in answers.items():
        for text, states in zip(TEXTS, found, strict=True):
            least = 0.999999 if dtype == "fp32" else VARIANTS[dtype].floor.cosine
            assert cosine(states, float_states(models, text)) >= least, dtype


def test_transformers_js_generates_text_with_every_variant_of_a_decoder(models: Path) -> None:
    answers = in_node(
        str(SCRIPTS / "client.mjs"), str(MODULES), str(models), "decoder", "text-generation",
        ",".join(PRESETS["web"]), *TEXTS,
    )  # fmt: skip
    for dtype, found in answers.items():
        for text, tokens in zip(TEXTS, found, strict=True):
            due = float_tokens(models, text)
            count = ids_of(text).size
            assert tokens[:count] == due[:count] and len(tokens) > count, dtype
            if dtype in ("fp32", "fp16"):
                assert tokens == due, dtype


def test_transformers_js_generates_text_with_every_variant_of_merged_decoders(models: Path) -> None:
    answers = in_node(
        str(SCRIPTS / "client.mjs"), str(MODULES), str(models), "both", "text2text-generation",
        ",".join(PRESETS["web"]), *TEXTS,
    )  # fmt: skip
    assert list(answers) == list(PRESETS["web"])
    for dtype, found in answers.items():
        for text, tokens in zip(TEXTS, found, strict=True):
            assert len(tokens) > 1 and tokens[0] == 1, dtype
            if dtype in ("fp32", "fp16"):
                assert tokens == float_answer(models, text), dtype


def test_webassembly_runs_every_variant_of_an_encoder(models: Path, tmp_path: Path) -> None:
    feeds = []
    for text in TEXTS:
        ids = ids_of(text)
        arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        feeds.append(
            {
                name: {"type": "int64", "dims": ids.shape, "data": array[0].tolist()}
                for name, array in arrays.items()
            }
        )
    (tmp_path / "feeds.json").write_text(json.dumps(feeds))
    for name in PRESETS["web"]:
        variant = VARIANTS[name]
        path = models / "encoder" / "onnx" / f"model{variant.suffix}.onnx"
        found = in_node(str(SCRIPTS / "wasm.mjs"), str(MODULES), str(path), str(tmp_path / "feeds.json"))
        for text, states in zip(TEXTS, found, strict=True):
            assert cosine(states, float_states(models, text)) >= variant.floor.cosine, name


@pytest.fixture
def site(models: Path, tmp_path: Path) -> Iterator[str]:
    """A server of the page, the models and the packages."""
    for name, place in (("modules", MODULES), ("models", models), ("scripts", SCRIPTS)):
        (tmp_path / name).symlink_to(place)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Be quiet."""

    Handler.extensions_map = {
        **Handler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with contextlib.closing(server.socket):
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif(chromium.missing() is not None, reason=chromium.missing() or "")
def test_chromium_runs_an_encoder_and_a_decoder(models: Path, site: str) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium.path(), args=["--no-sandbox"])
        page = opened.new_page()
        page.goto(f"{site}/scripts/page.html")
        page.wait_for_function("window.answer !== undefined", timeout=60_000)
        call = "([name, task, dtype, texts]) => window.answer(name, task, dtype, texts)"
        for dtype in ("q8", "q4", "q4f16"):
            found = page.evaluate(call, ["encoder", "feature-extraction", dtype, TEXTS])
            for text, states in zip(TEXTS, found, strict=True):
                assert cosine(states, float_states(models, text)) >= VARIANTS[dtype].floor.cosine
        (tokens,) = page.evaluate(call, ["decoder", "text-generation", "fp16", TEXTS[:1]])
        assert tokens == float_tokens(models, TEXTS[0])
        (tokens,) = page.evaluate(call, ["both", "text2text-generation", "fp16", TEXTS[:1]])
        assert tokens == float_answer(models, TEXTS[0])
        opened.close()
