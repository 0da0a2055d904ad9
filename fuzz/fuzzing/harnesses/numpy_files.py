"""Calibration data in ``.npy`` and ``.npz`` files, in archives of them, and in ``.pb`` tensors."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from random import Random

import numpy as np
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from fuzzing import guard
from fuzzing.mutations import messages, raw
from octavo.data.feeds import Feeds
from octavo.errors import OctavoError
from octavo.model.runtime.session import InputSpec

SCOPE = ("data/readers/numpy_files.py", "data/readers/archives.py",
         "data/readers/array_samples.py", "data/readers/tensor_files.py",
         "data/readers/__init__.py", "data/feeds.py")  # fmt: skip
SECONDS = 10.0

_MAGIC = b"\x93NUMPY"
_ONE = [InputSpec("x", np.dtype(np.float32), ("n", 4))]
_TWO = [*_ONE, InputSpec("ids", np.dtype(np.int64), ("n",))]
_SHAPES = ("()", "(3, 4)", "(4,)", "(0,)", "(-1, 4)", "(3, 0, 4)", "(1, 3, 4)",
           "(4294967296, 4294967296)", "(3,)", "(9223372036854775807,)", "(1e9,)", "(True, 4)",
           "3", "('a',)", "(1,)" * 40, "((3,), 4)", "(" + "1, " * 40 + ")")  # fmt: skip
_TYPES = ("'<f4'", "'<f8'", "'>f4'", "'|O'", "'<i8'", "'|S4'", "'<U3'", "'<M8[s]'",
          "[('a', '<f4')]", "'f4,f4'", "'V0'", "'<c8'", "'|b1'", "'x'", "None", "'<f2'",
          "('<f4', (2,))", "'|V4'", "'O8'", "'<f16'")  # fmt: skip


def _npy(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    np.save(made, array, allow_pickle=False)
    return made.getvalue()


def _arrays() -> dict[str, np.ndarray]:
    return {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "ids": np.arange(3, dtype=np.int64)}


def _zip(members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, kind)
    return made.getvalue()


def _tar(members: dict[str, bytes], mode: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def seeds() -> list[bytes]:
    """One of each kind."""
    arrays = {f"{name}.npy": _npy(array) for name, array in _arrays().items()}
    npz = _zip(arrays)
    tensor = numpy_helper.from_array(_arrays()["x"], "x").SerializeToString()
    return [ arrays["x.npy"], npz, _zip(arrays, zipfile.ZIP_DEFLATED), _zip({"a.npz": npz,
            "b.npz": npz}), _zip({"a.npy": arrays["x.npy"]}), _tar({"a.npz": npz}, "w:"),
            _tar({"a.npy": arrays["x.npy"]}, "w:gz"), tensor, ]  # fmt: skip


def _kinds(data: bytes) -> tuple[str, ...]:
    """The endings under which such bytes are tried."""
    if data[:2] == b"PK":
        return ("data.npz", "data.zip")
    if data[:6] == _MAGIC:
        return ("data.npy",)
    if data[:2] == b"\x1f\x8b":
        return ("data.tar.gz",)
    return ("data.tar",) if data[257:262] == b"ustar" else ("data.pb", "data.npz", "data.npy")


def mutate(data: bytes, chance: Random) -> bytes:
    """Headers, members and sizes changed by kind; the rest as bytes."""
    if chance.random() < 0.25:
        return raw.mutate(data, chance, [b"PK\1\2", b"PK\3\4", b"PK\5\6", _MAGIC])
    kind = _kinds(data)[0]
    if kind == "data.npy":
        return _change_npy(data, chance)
    if kind == "data.npz":
        return _change_zip(data, chance)
    if kind.startswith("data.tar"):
        return _change_tar(data, chance)
    try:
        tensor = TensorProto.FromString(data)
    except DecodeError:
        return raw.mutate(data, chance)
    messages.change_any(tensor, chance, ["x", "y"])
    return tensor.SerializeToString()[: raw.MOST_BYTES]


def _change_npy(data: bytes, chance: Random) -> bytes:
    """Another header over the same content, its length right."""
    kind, shape = "'<f4'", "(3, 4)"
    if chance.random() < 0.7:
        shape = chance.choice(_SHAPES)
    if chance.random() < 0.5:
        kind = chance.choice(_TYPES)
    order = chance.choice(("False", "False", "True", "7"))
    text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    if chance.random() < 0.15:
        text = raw.mutate(text.encode(), chance, [b"(" * 300, b"-" * 500, b"'", b"\n", b"L"]).decode(
            "latin-1"
        )
    body = data[-chance.choice((48, 48, 48, 47, 0, 8)) :]
    content = text.encode("utf-8", "replace") + b" " * chance.randrange(3) + b"\n"
    version = chance.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    length = struct.pack("<H" if version == (1, 0) else "<I", min(len(content), 65535))
    return (_MAGIC + bytes(version) + length + content + body)[: raw.MOST_BYTES]


def _change_zip(data: bytes, chance: Random) -> bytes:
    """Changed members in a sound archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = {info.filename: archive.read(info) for info in archive.infolist()[:8]}
    except Exception:  # whatever a broken archive raises
        return raw.mutate(data, chance)
    if not found:
        return _zip({"x.npy": _npy(_arrays()["x"])})
    name = chance.choice(sorted(found))
    match chance.randrange(5):
        case 0 | 1:
            found[name] = mutate(found[name], chance)
        case 2:
            found[chance.choice(("x.npy", "ids.npy", "y.npy", "../x.npy", "/x.npy", ".npy",
                  "a/", "b.npz", "é.npy", raw.text(chance) + ".npy"))] = found.pop(name)  # fmt: skip
        case 3:
            del found[name]
        case _:
            found[f"{len(found)}.npy"] = found[name]
    packed = (
        zipfile.ZIP_STORED,
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
        zipfile.ZIP_BZIP2,
        zipfile.ZIP_LZMA,
    )
    return _zip(found, chance.choice(packed))[: raw.MOST_BYTES]


def _change_tar(data: bytes, chance: Random) -> bytes:
    """Another member, of another kind."""
    info = tarfile.TarInfo(
        chance.choice(("a.npy", "../a.npy", "/etc/a.npy", "b.npz", raw.text(chance) or "c.npy"))
    )
    info.type = chance.choice((tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE,
                              tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE,
                              tarfile.CHRTYPE))  # fmt: skip
    info.linkname = "/etc/passwd"
    content = mutate(_npy(_arrays()["x"]), chance)
    info.size = len(content)
    made = io.BytesIO()
    with tarfile.open(
        fileobj=made, mode="w:gz" if data[:2] == b"\x1f\x8b" else "w:", format=chance.randrange(3)
    ) as out:
        try:
            out.addfile(info, io.BytesIO(content))
        except (ValueError, UnicodeError):
            return raw.mutate(data, chance)
    return made.getvalue()[: raw.MOST_BYTES]


def one(data: bytes) -> None:
    """Read every sample, for a model with one input and for one with two."""
    for name in _kinds(data):
        path = guard.folder() / name
        path.write_bytes(data)
        for specs in (_ONE, _TWO):
            try:
                for number, sample in enumerate(Feeds(path, specs, limit=50)):
                    _check(sample, number)
            except OctavoError:
                continue


def _check(sample: object, number: int) -> None:
    """What reaches a model is of its inputs' type and shape."""
    if number > 50:
        raise guard.FindingError("limit", "more samples than requested")
    if not isinstance(sample, dict):
        return
    for spec in _TWO:
        array = sample.get(spec.name)
        if array is not None and (array.dtype != spec.dtype or array.ndim != len(spec.shape)):
            raise guard.FindingError("sample", f"{spec.name} is {array.dtype} {array.shape}")
