"""External weights: where a tensor says that its content lies, in a folder with files, links and traps."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from random import Random

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models, raw
from octavo.errors import OctavoError
from octavo.model.files import io
from octavo.model.graph import query

SCOPE = (
    "model/files/external.py",
    "model/graph/tensors.py",
    "model/files/bounds.py",
    "model/files/reading.py",
)
SECONDS = 10.0

_FILES = ("weights.bin", "short.bin", "empty.bin", "sub/inner.bin", "link.bin",
          "inside-link.bin", "hard.bin", "folder.bin", "fifo.bin", "loop.bin",
          "sub/../weights.bin", "../secret.bin", "./weights.bin", "sub//inner.bin",
          "sub/up/secret.bin", "weights.bin/", "WEIGHTS.BIN", "weights.bin\0", "model.onnx",
          "file:weights.bin", "c:weights.bin", "weights.bin::$DATA", "sub\\inner.bin",
          "/dev/zero", "/proc/self/mem", "~/x", "x" * 300, "x/" * 2000 + "y")  # fmt: skip
_KEYS = ("location", "offset", "length", "checksum", "base_path", "__class__", "", "size")
_NUMBERS = (
    "0",
    "1",
    "4",
    "256",
    "4096",
    "-1",
    "1e3",
    " 4",
    "0x10",
    "4 ",
    "٣",
    "",
    "9" * 19,
    "9" * 30,
    "+4",
    "4_0",
)


@functools.cache
def _place() -> Path:
    """The folder with the traps, made once, before anybody watches."""
    home = guard.folder() / "external"
    (home / "sub").mkdir(parents=True)
    (home / "weights.bin").write_bytes(bytes(range(256)) * 32)
    (home / "short.bin").write_bytes(b"\1\2\3")
    (home / "empty.bin").write_bytes(b"")
    (home / "sub" / "inner.bin").write_bytes(bytes(4096))
    (home / "folder.bin").mkdir()
    os.mkfifo(home / "fifo.bin")
    (home / "link.bin").symlink_to(guard.folder().parent / "secret.bin")
    (home / "inside-link.bin").symlink_to("weights.bin")
    (home / "loop.bin").symlink_to("loop.bin")
    (home / "sub" / "up").symlink_to(guard.folder().parent)
    (home / "other.bin").write_bytes(bytes(4096))
    (home / "hard.bin").hardlink_to(home / "other.bin")
    return home


def seeds() -> list[bytes]:
    """Models whose weights lie in files."""
    _place()
    found = []
    for content in made.models()[:4]:
        model, at = ModelProto.FromString(content), 0
        for tensor in model.graph.initializer:
            size = len(tensor.raw_data)
            _refer(tensor, {"location": "weights.bin", "offset": str(at), "length": str(size)})
            at += size
        found.append(model.SerializeToString())
    return found


def _refer(tensor: TensorProto, entries: dict[str, str]) -> None:
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


def mutate(data: bytes, chance: Random) -> bytes:
    """Other entries; now and then another model around them."""
    if chance.random() < 0.15:
        return models.mutate(data, chance)
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        return raw.mutate(data, chance)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if model.graph.initializer:
            _change(chance.choice(model.graph.initializer), chance)
    made_now = model.SerializeToString()
    return made_now if len(made_now) <= raw.MOST_BYTES else data


def _change(tensor: TensorProto, chance: Random) -> None:
    entries = tensor.external_data
    place = chance.choice(_FILES) if chance.random() < 0.8 else raw.text(chance)
    match chance.randrange(7):
        case 0:
            _refer(tensor, {"location": place})
        case 1:
            entries.add(key=chance.choice(_KEYS), value=chance.choice((*_NUMBERS, place)))
        case 2 if entries:
            del entries[chance.randrange(len(entries))]
        case 3 if entries:
            entry = chance.choice(entries)
            entry.value = place if entry.key == "location" else chance.choice(_NUMBERS)
        case 4 if entries:
            chance.choice(entries).key = chance.choice(_KEYS)
        case 5:
            models.change_tensor(ModelProto(graph={"initializer": [tensor]}), chance)
            tensor.data_type = chance.randrange(0, 27)
        case _:
            tensor.dims[:] = [chance.choice((*raw.NUMBERS, *range(9))) for _ in range(chance.randrange(4))]


def one(data: bytes) -> None:
    """Load from bytes beside the folder, and from a file in it; every weight is read."""
    home = _place()
    path = home / "model.onnx"
    path.write_bytes(data)
    for source, base in ((data, home), (path, None), (data, None)):
        try:
            loaded = io.load(source, base_dir=base)
            for tensor in query.tensors(loaded):
                if b"secret!!" in tensor.tobytes():
                    raise guard.FindingError("breach", "a weight holds what lies outside of the folder")
        except OctavoError:
            continue
