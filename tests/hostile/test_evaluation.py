"""Tokenizers, labels, annotations and texts that somebody else made: a sentence, or a right result."""

from __future__ import annotations

import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from hostile.models import WIDTH, layer, written
from hostile.sandbox import Sandbox
from hostile.test_data import _bomb, npy
from octavo.data.feeds import Feeds
from octavo.errors import DataError, OctavoError
from octavo.evaluation.detection.annotations import Annotations
from octavo.evaluation.label_files import class_names, class_number, entries
from octavo.model.runtime.session import InputSpec

IDS = [InputSpec("input_ids", np.dtype(np.int64), ("n", "length"))]
DEEP = b"[" * 100_000
DIGITS = b"9" * 10_000


def _tokenizer(**changes: Any) -> dict[str, Any]:
    """A tokenizer of words."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2}, "unk_token": "[UNK]"},
        **changes,
    }


def _words(**changes: Any) -> dict[str, Any]:
    return {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]", **changes}


def _padded(pad: Any) -> dict[str, Any]:
    entry = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None,
             "pad_id": pad, "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
    return _tokenizer(padding=entry)


TOKENIZERS: dict[str, bytes | dict[str, Any]] = {
    "empty": b"",
    "garbage": b"\xff\x00" * 50,
    "deep": DEEP,
    "no-object": b"3",
    "other-json": b'{"a": 1}',
    "no-model": _tokenizer(model=None),
    "unknown-model": _tokenizer(model={"type": "Exec", "command": "touch /tmp/octavo-was-here"}),
    "vocabulary-of-text": _tokenizer(model=_words(vocab={"a": "b"})),
    "vocabulary-negative": _tokenizer(model=_words(vocab={"a": -1})),
    "vocabulary-beyond-uint32": _tokenizer(model=_words(vocab={"a": 2**40})),
    "unknown-word-missing": _tokenizer(model=_words()),
    "pattern-that-is-none": _tokenizer(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(((("}, "behavior": "Isolated", "invert": False}
    ),
    "merges-of-nothing": _tokenizer(model={"type": "BPE", "vocab": {}, "merges": ["a b"]}),
    "pad-negative": _padded(-1),
    "pad-beyond-int64": _padded(2**64),
    "template-without-tokens": _tokenizer(
        post_processor={
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    ),
    "pickle": b"\x80\x04cos\nsystem\n(Vtouch /tmp/octavo-was-here\ntR.",
}


def _ids(path: Path) -> list[Any]:
    data = octavo.text(["a b zebra", "b"], path, max_length=8)
    return [one["input_ids"].tolist() for one in Feeds(data, IDS)]


@pytest.mark.parametrize("content", TOKENIZERS.values(), ids=TOKENIZERS.keys())
def test_a_hostile_tokenizer(sandbox: Sandbox, content: bytes | dict[str, Any]) -> None:
    pytest.importorskip("tokenizers")
    path = sandbox.given / "tokenizer.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    sandbox.refuses(lambda: _ids(path), DataError, "tokenizer")


def test_a_plain_tokenizer_is_read(sandbox: Sandbox) -> None:
    pytest.importorskip("tokenizers")
    path = sandbox.given / "tokenizer.json"
    path.write_text(json.dumps(_tokenizer()))
    assert sandbox.gives(lambda: _ids(path)) == [[[0, 1, 2]], [[1]]]


@pytest.mark.parametrize("name", ["fifo", "folder", "/dev/zero", "nothing.json"])
def test_a_tokenizer_that_is_no_file(sandbox: Sandbox, name: str) -> None:
    pytest.importorskip("tokenizers")
    path = sandbox.given / name
    if name == "fifo":
        os.mkfifo(path)
    elif name == "folder":
        path.mkdir()
    sandbox.refuses(lambda: _ids(path), DataError, "tokenizer")


LABELS: dict[str, tuple[str, bytes]] = {
    "empty": ("l.csv", b""),
    "blank": ("l.txt", b"\n\n \n"),
    "no-utf8": ("l.txt", b"\xff\xfe\xfd\n"),
    "nul": ("l.csv", b"\0" * 5),
    "field-of-a-megabyte": ("l.csv", b"a," + b"b" * (1 << 20)),
    "unclosed-quote": ("l.csv", b'a,"b\n' + b"c,d\n" * 50_000),
    "ragged": ("l.csv", b"a,1\nb\n"),
    "many-columns": ("l.csv", b"a,b,c,d\n"),
    "json-deep": ("l.json", DEEP),
    "json-digits": ("l.json", b"[" + DIGITS + b"]"),
    "json-number": ("l.json", b"3"),
    "json-cut": ("l.json", b'{"a": '),
    "json-nested": ("l.json", b"[[[1, 2], 3, 4]]"),
    "json-object-without-label": ("l.json", b'[{"a": 1}]'),
    "json-null": ("l.json", b"[null]"),
    "other-ending": ("l.pkl", b"\x80\x04."),
}


@pytest.mark.parametrize(("name", "content"), LABELS.values(), ids=LABELS.keys())
def test_a_hostile_labels_file(sandbox: Sandbox, name: str, content: bytes) -> None:
    path = sandbox.given / name
    path.write_bytes(content)

    def numbers() -> list[int]:
        return [class_number(label, None, str(path)) for _, label in entries(path)]

    sandbox.refuses(numbers, DataError)


@pytest.mark.parametrize("name", ["fifo.csv", "/dev/zero", "a\0b.csv", "n" * 5000 + ".csv", "folder.csv"])
def test_labels_that_are_no_file(sandbox: Sandbox, name: str) -> None:
    path = sandbox.given / name
    if name == "fifo.csv":
        os.mkfifo(path)
    elif name == "folder.csv":
        path.mkdir()
    sandbox.refuses(lambda: entries(path), DataError)


def test_labels_that_climb_name_no_image_that_is_none(sandbox: Sandbox) -> None:
    """A label of a file that is no image ends in a sentence, and nothing of the file is told."""
    pytest.importorskip("PIL")
    made = sandbox.given / "images"
    made.mkdir()
    (made / "labels.csv").write_text("file_name,label\n../../elsewhere/secret.bin,0\n")
    from builders import model, node, tensor

    proto = model([node("Relu", ["x"], ["y"], "r")], [tensor("x", [1, 3, 8, 8])], [tensor("y", [1, 3, 8, 8])])
    message = sandbox.refuses(lambda: octavo.evaluate(proto, made), OctavoError)
    assert "secret!!" not in message


CLASSES = {"deep": DEEP, "digits": b'{"' + DIGITS + b'": "a"}', "number": b"7", "cut": b'["a"'}


@pytest.mark.parametrize("content", CLASSES.values(), ids=CLASSES.keys())
def test_a_hostile_list_of_classes(sandbox: Sandbox, content: bytes) -> None:
    path = sandbox.given / "classes.json"
    path.write_bytes(content)
    sandbox.refuses(lambda: class_names(path), DataError)


def test_a_class_of_a_megabyte_is_answered_at_once(sandbox: Sandbox) -> None:
    names = ["n" * (1 << 20), *(f"class {number}" for number in range(1000))]
    sandbox.refuses(lambda: class_number("m" * (1 << 20), names, "a.png"), DataError)


def _coco(**changes: Any) -> dict[str, Any]:
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 8, "height": 8}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4]}],
        "categories": [{"id": 1, "name": "thing"}],
        **changes,
    }


def _object(**changes: Any) -> dict[str, Any]:
    return _coco(annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4], **changes}])


ANNOTATIONS: dict[str, Any] = {
    "empty": b"",
    "garbage": b"\xff\xfe",
    "deep": DEEP,
    "digits": b'{"images": ' + DIGITS + b"}",
    "list": [],
    "no-images": _coco(images=None),
    "images-an-object": _coco(images={"id": 1}),
    "image-a-number": _coco(images=[3]),
    "image-without-name": _coco(images=[{"id": 1}]),
    "image-id-infinite": _coco(images=[{"id": float("inf"), "file_name": "a"}]),
    "image-id-nan": _coco(images=[{"id": float("nan"), "file_name": "a"}]),
    "image-id-a-list": _coco(images=[{"id": [1], "file_name": "a"}]),
    "box-short": _object(bbox=[1, 2]),
    "box-long": _object(bbox=[1] * 9),
    "box-nan": _object(bbox=[float("nan")] * 4),
    "box-infinite": _object(bbox=[0, 0, 1e999, 1]),
    "box-text": _object(bbox="abcd"),
    "box-missing": _coco(annotations=[{"image_id": 1, "category_id": 1}]),
    "category-text": _object(category_id="thing"),
    "category-without-id": _coco(categories=[{"name": "x"}]),
    "category-null": _coco(categories=[None]),
}


@pytest.mark.parametrize("content", ANNOTATIONS.values(), ids=ANNOTATIONS.keys())
def test_a_hostile_annotations_file(sandbox: Sandbox, content: Any) -> None:
    path = sandbox.given / "instances.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    sandbox.refuses(lambda: Annotations.read(path), DataError, "instances.json")


def _npz(path: Path, name: str, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)


ARRAYS: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\xff" * 99),
    "terabytes": lambda path: _npz(
        path, "x.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 32)}")
    ),
    "objects": lambda path: _npz(
        path, "labels.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80\x04.")
    ),
    "bomb": lambda path: _bomb(path, "x.npy", 320 << 20),
    "no-labels": lambda path: np.savez(path, x=np.zeros((2, WIDTH), np.float32)),
    "labels-of-another-length": lambda path: np.savez(path, x=np.zeros((2, WIDTH), np.float32), labels=[1]),
    "labels-of-rank-3": lambda path: np.savez(path, x=np.zeros((1, WIDTH), "f4"), labels=np.zeros((1, 1, 1))),
    "size-in-the-directory-lies": lambda path: _lying(path),
    "a-pipe": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "an-array-alone": lambda path: path.write_bytes(
        npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (2, {WIDTH})}}") + bytes(8 * WIDTH)
    ),
}  # fmt: skip


def _lying(path: Path) -> None:
    np.savez_compressed(path, x=np.zeros((2, WIDTH), np.float32), labels=[0, 1])
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\1\2")
    content[at + 24 : at + 28] = struct.pack("<I", 0xFFFFFF00)
    path.write_bytes(content)


@pytest.mark.parametrize("make", ARRAYS.values(), ids=ARRAYS.keys())
def test_hostile_labelled_arrays(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    make(sandbox.given / "data.npz")
    sandbox.refuses(lambda: octavo.evaluate(layer(), sandbox.given / "data.npz"), DataError)


def _set(folder: Path, names: dict[str, bytes], at: str = "test_data_set_0") -> None:
    (folder / at).mkdir(parents=True)
    for name, content in names.items():
        (folder / at / name).write_bytes(content)


def _sample(**fields: Any) -> bytes:
    import onnx

    made = onnx.TensorProto(data_type=1, dims=[1, WIDTH], raw_data=bytes(4 * WIDTH), name="x")
    for name, value in fields.items():
        if name == "dims":
            made.ClearField("dims")
            made.dims.extend(value)
        else:
            setattr(made, name, value)
    return made.SerializeToString()


def _linked(folder: Path) -> None:
    (folder / "test_data_set_0").mkdir()
    (folder / "test_data_set_0" / "input_0.pb").symlink_to("/dev/zero")


SETS: dict[str, Callable[[Path], object]] = {
    "no-inputs": lambda folder: _set(folder, {"output_0.pb": _sample()}),
    "garbage": lambda folder: _set(folder, {"input_0.pb": b"\xff" * 99}),
    "gap": lambda folder: _set(folder, {"input_1.pb": _sample(name="")}),
    "too-many": lambda folder: _set(folder, {"input_0.pb": _sample(), "input_1.pb": _sample(name="z")}),
    "number-of-200-digits": lambda folder: _set(folder, {f"input_{'9' * 200}.pb": _sample(name="")}),
    "other-type": lambda folder: _set(folder, {"input_0.pb": _sample(data_type=7)}),
    "sequence": lambda folder: _set(folder, {"input_0.pb": b"\x0a\x01x\x10\x01"}),
    "short": lambda folder: _set(folder, {"input_0.pb": _sample(raw_data=bytes(3))}),
    "rank-0": lambda folder: _set(folder, {"input_0.pb": _sample(dims=[], raw_data=bytes(4))}),
    "device": _linked,
}


@pytest.mark.parametrize("make", SETS.values(), ids=SETS.keys())
def test_a_hostile_test_data_set(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    folder = sandbox.given / "sets"
    folder.mkdir()
    make(folder)
    model = written(layer(), sandbox.given)
    sandbox.refuses(
        lambda: octavo.quantize(model, folder, output=sandbox.out / "m.onnx", threads=1, effort="plain"),
        DataError,
    )


TEXTS: dict[str, tuple[str, bytes]] = {
    "empty": ("t.tsv", b""),
    "no-number": ("t.tsv", b"text\tother\na\tb\n"),
    "field-of-a-megabyte": ("t.csv", b"label,text\n1," + b"x" * (1 << 20)),
    "json-deep": ("t.jsonl", DEEP),
    "json-digits": ("t.jsonl", b'{"label": ' + DIGITS + b', "text": "a"}'),
    "no-utf8": ("t.tsv", b"1\t\xff\n"),
}


@pytest.mark.parametrize(("name", "content"), TEXTS.values(), ids=TEXTS.keys())
def test_hostile_labelled_texts(sandbox: Sandbox, name: str, content: bytes) -> None:
    from octavo.evaluation.text_samples import text_rows as rows

    (sandbox.given / name).write_bytes(content)
    sandbox.refuses(lambda: rows(sandbox.given / name, 1, None, None), DataError)
