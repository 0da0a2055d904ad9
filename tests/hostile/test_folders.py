"""Model folders and GGUF files that come from anybody."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from folders.small_folders import decoder, text_encoder, texts
from gguf_files import write_gguf

import octavo
from hostile.models import layer, written
from hostile.sandbox import Sandbox
from octavo.errors import DataError, ModelError, OutputError
from octavo.pipeline.gguf import import_gguf

Change = Callable[[Path], object]


def _json(name: str, **settings: Any) -> Change:
    """Replace settings of a configuration file."""

    def change(folder: Path) -> None:
        path = folder / name
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, **settings}))

    return change


def _text(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text)


def _instead(name: str, make: Change) -> Change:
    """Put something else in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


CONFIGS: dict[str, Change] = {
    "deep": _text("config.json", "[" * 200_000),
    "deep-objects": _text("config.json", '{"a":' * 200_000),
    "digits": _text("config.json", f'{{"vocab_size": {"9" * 10_000}}}'),
    "a-list": _text("config.json", "[1]"),
    "no-utf8": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe{"),
    "lone-surrogate": _text("config.json", '{"model_type": "\\ud800", "vocab_size": 124}'),
    "huge-vocabulary": _json("config.json", vocab_size=10**30),
    "vocabulary-of-2-to-the-63": _json("config.json", vocab_size=1 << 63),
    "negative-vocabulary": _json("config.json", vocab_size=-5),
    "vocabulary-of-truth": _json("config.json", vocab_size=True),
    "tokens-beyond-64-bits": _json("config.json", eos_token_id=10**30, bos_token_id=10**30),
    "negative-tokens": _json("config.json", eos_token_id=-1, bos_token_id=-7),
    "tokens-of-other-types": _json("config.json", eos_token_id={}, bos_token_id=[["x"]]),
    "token-is-true": _json("config.json", bos_token_id=True, eos_token_id=[True]),
    "external-data-is-a-number": _json("config.json", **{"transformers.js_config": 3}),
    "model-type-is-a-list": _json("config.json", model_type=[1]),
    "nested-model": _json("genai_config.json", model={"vocab_size": "many", "model": {"model": []}}),
    "genai-names-files-outside": _json(
        "genai_config.json",
        model={"decoder": {"filename": "../elsewhere/secret.bin"}, "eos_token_id": 10**40},
    ),
    "genai-names-absolute-files": _json(
        "genai_config.json", model={"decoder": {"filename": "/etc/passwd", "session_options": []}}
    ),
    "mean-of-texts": _json("preprocessor_config.json", image_mean=["a"], image_std=["b"]),
    "mean-of-nothing": _json("preprocessor_config.json", image_mean=[None], image_std=[{}]),
    "mean-beyond-floats": _json("preprocessor_config.json", image_mean=[10**400], image_std=[0, 0, 0]),
    "config-is-a-pipe": _instead("config.json", os.mkfifo),
    "config-is-endless": _instead("config.json", lambda path: path.symlink_to("/dev/zero")),
    "config-is-a-folder": _instead("config.json", Path.mkdir),
    "config-links-to-itself": _instead("config.json", lambda path: path.symlink_to(path.name)),
    "tokenizer-is-deep": _text("tokenizer.json", "[" * 200_000),
    "tokenizer-is-no-utf8": lambda folder: (folder / "tokenizer.json").write_bytes(b"\xff\xfe{"),
    "tokenizer-is-empty": _text("tokenizer.json", ""),
    "tokenizer-is-a-list": _text("tokenizer.json", "[]"),
    "tokenizer-without-a-model": _text("tokenizer.json", '{"version": "1.0"}'),
    "tokenizer-is-endless": _instead("tokenizer.json", lambda path: path.symlink_to("/dev/zero")),
    "tokenizer-is-a-pipe": _instead("tokenizer.json", os.mkfifo),
    "a-thousand-folders": lambda folder: [(folder / f"f{i}").mkdir() for i in range(1000)],
    "a-folder-links-to-itself": lambda folder: (folder / "loop").symlink_to("."),
    "a-folder-links-to-the-root": lambda folder: (folder / "loop").symlink_to("/etc"),
    "a-model-is-a-pipe": lambda folder: os.mkfifo(folder / "other.onnx"),
    "a-model-is-a-folder": lambda folder: (folder / "other.onnx").mkdir(),
    "a-model-links-to-itself": lambda folder: (folder / "other.onnx").symlink_to("other.onnx"),
    "a-model-is-garbage": lambda folder: (folder / "other.onnx").write_bytes(b"\xff" * 64),
    "a-model-is-empty": lambda folder: (folder / "other.onnx").write_bytes(b""),
    "a-hundred-models": lambda folder: [
        (folder / f"m{i}.onnx").write_bytes((folder / "model.onnx").read_bytes()) for i in range(100)
    ],
    "a-name-with-a-line-break": lambda folder: written(layer(), folder, "a\n# title\x1b[31m.onnx"),
    "a-name-of-markup": lambda folder: written(layer(), folder, "<img src=x onerror=alert(1)>|`.onnx"),
    "a-name-that-is-no-utf8": lambda folder: Path(os.fsdecode(bytes(folder) + b"/\xff\xfe.onnx")).write_bytes(
        layer().SerializeToString()
    ),
    "a-json-that-is-no-utf8": lambda folder: Path(os.fsdecode(bytes(folder) + b"/\xff\xfe.json")).write_bytes(
        b"{}"
    ),
}


def _quantize(sandbox: Sandbox, data: Any = None) -> Any:
    return str(
        octavo.quantize_folder(
            sandbox.given / "folder", data, output=sandbox.out / "v", variants="q8", threads=1, seconds=0
        )
    )


@pytest.mark.parametrize("change", CONFIGS.values(), ids=CONFIGS.keys())
@pytest.mark.parametrize("make", [text_encoder, decoder], ids=["encoder", "decoder"])
def test_a_folder_that_comes_from_anybody(
    sandbox: Sandbox, make: Callable[[Path], Path], change: Change
) -> None:
    folder = make(sandbox.given / "folder")
    if (folder / "onnx").exists():
        (folder / "onnx" / "model.onnx").rename(folder / "model.onnx")
    change(folder)
    some = texts(sandbox.given / "texts.txt")
    for data in (None, some):
        before = list(sandbox.out.iterdir())
        outcome = sandbox.settles(lambda data=data: _quantize(sandbox, data))
        if outcome.error is not None:
            assert outcome.message.rstrip()[-1:] in ".?!", outcome.message
            assert list(sandbox.out.iterdir()) == before
        assert "\x1b" not in str(outcome.value) + outcome.message


DATA: dict[str, Change] = {
    "a-pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "an-array-alone": lambda path: path.write_bytes(b"\x93NUMPY\1\0" + bytes(100)),
    "garbage": lambda path: path.write_bytes(b"PK\3\4" + b"\xff" * 99),
    "empty": lambda path: path.write_bytes(b""),
    "a-folder": Path.mkdir,
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
def test_arrays_for_a_folder_that_come_from_anybody(sandbox: Sandbox, make: Change) -> None:
    text_encoder(sandbox.given / "folder")
    make(sandbox.given / "data.npz")
    sandbox.refuses(lambda: _quantize(sandbox, sandbox.given / "data.npz"), DataError, "data.npz")


def _decoder_changed(change: Callable[[onnx.ModelProto], object]) -> Change:
    def make(folder: Path) -> None:
        path = folder / "model.onnx"
        made = onnx.load(path)
        change(made)
        onnx.save(made, path)

    return make


def _instead_of_logits(op: str, **attributes: Any) -> Change:
    """Another node makes the logits of what made them."""

    def change(made: onnx.ModelProto) -> None:
        last = next(one for one in made.graph.node if "logits" in one.output)
        last.output[0] = "logits_before"
        made.graph.node.append(onnx.helper.make_node(op, ["logits_before"], ["logits"], **attributes))
        for value in made.graph.output:
            if value.name == "logits":
                value.type.tensor_type.ClearField("shape")

    return _decoder_changed(change)


def _named(old: str, new: str) -> Change:
    """Another name for an input or output."""

    def change(made: onnx.ModelProto) -> None:
        for value in (*made.graph.input, *made.graph.output):
            value.name = new if value.name == old else value.name
        for one in made.graph.node:
            one.input[:] = [new if name == old else name for name in one.input]
            one.output[:] = [new if name == old else name for name in one.output]

    return _decoder_changed(change)


def _no_tokens(made: onnx.ModelProto) -> None:
    """A table of no rows."""
    table = next(one for one in made.graph.initializer if one.name == "embed_table")
    table.CopyFrom(onnx.numpy_helper.from_array(np.zeros((0, 64), np.float32), "embed_table"))


DECODERS: dict[str, Change] = {
    "logits-are-nan": _instead_of_logits("Sqrt"),
    "logits-are-a-number": _instead_of_logits("ReduceSum", keepdims=0),
    "logits-are-a-row": _instead_of_logits("ReduceSum", keepdims=1),
    "logits-are-a-shape": _instead_of_logits("Shape"),
    "logits-are-empty": _instead_of_logits("NonZero"),
    "logits-are-a-sequence": _instead_of_logits("SequenceConstruct"),
    "no-logits": _named("logits", "scores"),
    "ids-of-another-name": _named("input_ids", "decoder_input_ids"),
    "positions-of-another-name": _named("position_ids", "num_logits_to_keep"),
    "cache-of-another-name": _named("present.0.key", "present.7.key"),
    "a-name-of-markup": _named("attention_mask", "past<script>|`\n"),
    "no-tokens": _decoder_changed(_no_tokens),
    "start-token-beyond-64-bits": _json("config.json", bos_token_id=10**30),
    "start-token-without-a-row": _json("config.json", bos_token_id=1 << 40),
    "negative-start-token": _json("config.json", bos_token_id=-(1 << 62)),
}


@pytest.mark.parametrize("change", DECODERS.values(), ids=DECODERS.keys())
def test_a_decoder_that_comes_from_anybody(sandbox: Sandbox, change: Change) -> None:
    folder = decoder(sandbox.given / "folder")
    (folder / "onnx" / "model.onnx").rename(folder / "model.onnx")
    change(folder)
    for data in (None, texts(sandbox.given / "texts.txt")):
        outcome = sandbox.settles(lambda data=data: _quantize(sandbox, data))
        if outcome.error is not None:
            assert outcome.message.rstrip()[-1:] in ".?!", outcome.message


def test_nothing_outside_of_a_folder_is_copied(sandbox: Sandbox) -> None:
    folder = text_encoder(sandbox.given / "folder")
    (folder / "notes.txt").symlink_to(sandbox.secret)
    (folder / "sub").symlink_to("/etc")
    os.link(sandbox.secret, folder / "hard.txt")
    sandbox.gives(lambda: _quantize(sandbox))
    names = {path.name for path in (sandbox.out / "v").rglob("*")}
    assert "notes.txt" not in names and "sub" not in names
    assert not [p for p in (sandbox.out / "v").rglob("*") if p.is_file() and b"secret!!" in p.read_bytes()]


def _gguf(*, tensors: int = 1, entries: int = 0, version: int = 3, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def _word(text: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text


def _tensor(dims: tuple[int, ...], code: int = 0, offset: int = 0, name: bytes = b"w") -> bytes:
    return _word(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, code, offset)


def _entry(kind: int, value: bytes, name: bytes = b"k") -> bytes:
    return _word(name) + struct.pack("<I", kind) + value


MANY = 4_000_000
GGUF: dict[str, bytes | Change] = {
    "empty": b"",
    "magic-alone": b"GGUF",
    "another-magic": b"GGML" + bytes(64),
    "version-1": _gguf(version=1, rest=bytes(64)),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(64),
    "counts-beyond-all": _gguf(tensors=1 << 63, entries=1 << 63, rest=bytes(64)),
    "a-name-beyond-the-end": _gguf(rest=_word(b"w", 1 << 62) + bytes(64)),
    "a-name-that-is-no-text": _gguf(rest=_tensor((32, 32), name=b"\xff\xfe") + bytes(8192)),
    "axes-beyond-all": _gguf(rest=_word(b"w") + struct.pack("<I", 0xFFFFFFFF) + bytes(64)),
    "dims-beyond-all": _gguf(rest=_tensor((1 << 63, 1 << 63)) + bytes(8192)),
    "dims-whose-product-overflows": _gguf(rest=_tensor((1 << 32, 1 << 32)) + bytes(8192)),
    "an-offset-beyond-the-end": _gguf(rest=_tensor((32, 32), offset=1 << 62) + bytes(8192)),
    "an-offset-that-overflows": _gguf(rest=_tensor((32, 32), offset=(1 << 64) - 64) + bytes(8192)),
    "an-odd-offset": _gguf(rest=_tensor((32, 32), offset=3) + bytes(8192)),
    "no-rows": _gguf(rest=_tensor((32, 0)) + bytes(8192)),
    "no-columns": _gguf(rest=_tensor((0, 32)) + bytes(8192)),
    "no-values-at-the-end": _gguf(rest=(one := _tensor((0, 0), offset=0)) + bytes(-(24 + len(one)) % 32)),
    "no-axes": _gguf(rest=_tensor(()) + bytes(8192)),
    "no-whole-blocks": _gguf(rest=_tensor((33, 32), 8) + bytes(8192)),
    "an-unknown-format": _gguf(rest=_tensor((32, 32), 9999) + bytes(8192)),
    "one-name-twice": _gguf(tensors=2, rest=2 * _tensor((32, 32)) + bytes(8192)),
    "metadata-of-an-unknown-type": _gguf(entries=1, rest=_entry(77, bytes(8)) + bytes(64)),
    "arrays-of-arrays": _gguf(entries=1, rest=_entry(9, struct.pack("<IQ", 9, 1 << 40)) + bytes(64)),
    "an-array-beyond-the-end": _gguf(entries=1, rest=_entry(9, struct.pack("<IQ", 12, 1 << 61)) + bytes(64)),
    "alignment-of-nothing": _gguf(
        entries=1, rest=_entry(4, struct.pack("<I", 0), b"general.alignment") + bytes(64)
    ),
    "alignment-of-a-text": _gguf(entries=1, rest=_entry(8, _word(b"x"), b"general.alignment") + bytes(64)),
    "alignment-is-true": _gguf(entries=1, rest=_entry(7, b"\1", b"general.alignment") + bytes(64)),
    "heads-of-all-kinds": _gguf(
        entries=3,
        rest=_entry(8, _word(b"llama"), b"general.architecture")
        + _entry(4, struct.pack("<I", 0), b"llama.attention.head_count")
        + _entry(5, struct.pack("<i", -3), b"llama.attention.head_count_kv")
        + _tensor((32, 32))
        + bytes(8192),
    ),
    "all-values-nan": _gguf(rest=_tensor((32, 32)) + b"\xff" * 8192),
    "scales-nan": _gguf(rest=_tensor((32, 32), 8) + b"\xff" * 8192),
    "many-empty-texts": _gguf(
        entries=1, rest=_entry(9, struct.pack("<IQ", 8, MANY)) + bytes(8 * MANY) + bytes(64)
    ),
    "many-empty-entries": _gguf(entries=MANY, rest=bytes(13 * MANY)),
    "a-pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a-folder": Path.mkdir,
    "missing": lambda path: None,
    "sparse-terabyte": lambda path: _sparse(path, _gguf(tensors=1 << 36)),
}


def _sparse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("made", GGUF.values(), ids=GGUF.keys())
def test_a_gguf_file_that_comes_from_anybody(sandbox: Sandbox, made: bytes | Change) -> None:
    path = sandbox.given / "model.gguf"
    path.write_bytes(made) if isinstance(made, bytes) else made(path)
    graph = written(layer(), sandbox.given)
    message = sandbox.refuses(lambda: import_gguf(path, graph, sandbox.out / "o.onnx"), ModelError)
    assert len(message) < 1000


TEMPLATES = {
    "out-of-the-sandbox": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "a-class": "{{ ().__class__.__mro__ }}",
    "a-range": "{{ range(10**9) | list }}",
    "endless-calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a-long-text": "{{ '%100000000d' % 1 }}",
    "a-longer-text": "{{ 'a' * 10**11 }}",
    "no-template": "{% for",
    "loops-in-loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a-power": "{{ 10 ** (10 ** 10) }}",
    "ten-gigabytes": "{{ 'a'.ljust(10 ** 10) }}",
    "a-long-answer": "{{ 'a'.ljust(2 ** 25) }}",
    "a-refusal": "{{ raise_exception('no') }}",
}


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_a_chat_template_that_comes_from_anybody(sandbox: Sandbox, template: str) -> None:
    pytest.importorskip("jinja2")
    folder = text_encoder(sandbox.given / "folder")
    (folder / "chat_template.jinja").write_text(template)
    data = sandbox.given / "chats.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "word1"}]}\n' * 3)
    sandbox.refuses(lambda: _quantize(sandbox, data), DataError, "chat template")


def test_a_gguf_file_is_not_overwritten(sandbox: Sandbox) -> None:
    path, graph = sandbox.given / "model.gguf", written(layer(), sandbox.given)
    weight = onnx.numpy_helper.to_array(layer().graph.initializer[0]).T
    write_gguf(path, {"w": ("Q8_0", np.ascontiguousarray(weight))}, {})
    for output in (path, graph):
        sandbox.refuses(lambda output=output: import_gguf(path, graph, output), OutputError)


def test_data_in_an_earlier_output_is_not_lost(sandbox: Sandbox) -> None:
    text_encoder(sandbox.given / "folder")
    sandbox.gives(lambda: _quantize(sandbox))
    some = texts(sandbox.out / "v" / "texts.txt")
    sandbox.refuses(lambda: _quantize(sandbox, some), OutputError)
    sandbox.refuses(lambda: _quantize(sandbox, {"model": some}), OutputError)


def test_a_gguf_file_with_one_name_for_other_shapes(sandbox: Sandbox) -> None:
    path = sandbox.given / "model.gguf"
    weight = onnx.numpy_helper.to_array(layer().graph.initializer[0]).T
    write_gguf(path, {"w": ("Q8_0", np.ascontiguousarray(weight)), "blk.0": ("F32", weight[:1])}, {})
    graph = written(layer(), sandbox.given)
    assert len(sandbox.gives(lambda: import_gguf(path, graph, sandbox.out / "o.onnx").placed)) == 1
