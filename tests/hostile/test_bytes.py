"""Files that are no models: cut off, changed, swapped, or made of nothing."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import numpy as np
import pytest

from hostile.models import layer, quantized, read
from hostile.sandbox import Sandbox
from octavo.errors import ModelError

WHOLE = layer(np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)).SerializeToString()

GARBAGE = {
    "empty": b"",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "text": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "page": b"<!DOCTYPE html><html><body>Not found</body></html>",
    "zip": b"PK\x03\x04" + bytes(100),
    "pickle": b"\x80\x04\x95" + bytes(100),
    "endless-varint": b"\x80" * 1000,
    "length-2-to-the-63": b"\x3a" + b"\xff" * 8 + b"\x7f" + bytes(20),
    "length-beyond-the-file": b"\x3a\xff\xff\xff\xff\x0f" + bytes(20),
    "length-of-a-weight-beyond-its-graph": b"\x08\x08\x3a\x08\x2a\xff\xff\xff\x7f\x00\x00\x00",
    "group-wire-type": b"\x3b" * 100,
    "field-0": b"\x02\x01\x00",
    "deep-messages": b"\x3a\x7e" * 60 + bytes(6),
    "graph-as-a-number": b"\x08\x08\x38\x01",
    "name-no-utf8": WHOLE.replace(b"relu", b"\xff\xfe\xfd\xfc"),
    "weight-name-no-utf8": WHOLE.replace(b"\x42\x01w", b"\x42\x01\xff"),
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE.keys())
def test_what_is_no_model(sandbox: Sandbox, content: bytes) -> None:
    path = sandbox.given / "model.onnx"
    path.write_bytes(content)
    sandbox.refuses_each([lambda: read(path), lambda: read(content)], ModelError)


@pytest.mark.parametrize("part", [0.0001, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_model_cut_off(sandbox: Sandbox, part: float) -> None:
    path = sandbox.given / "model.onnx"
    path.write_bytes(WHOLE[: max(1, int(len(WHOLE) * part))])
    sandbox.refuses(lambda: quantized(path, sandbox.out), ModelError)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_changed_at_random(sandbox: Sandbox, seed: int) -> None:
    """Sixty models with up to eight changed bytes each: a typed error, or a model that can be read."""

    small = layer().SerializeToString()

    def all_of_them() -> int:
        chance = random.Random(seed)
        settled = 0
        for _ in range(60):
            content = bytearray(small)
            for _ in range(chance.randint(1, 8)):
                content[chance.randrange(len(content))] = chance.randrange(256)
            with contextlib.suppress(ModelError):
                read(bytes(content))
            settled += 1
        return settled

    assert sandbox.gives(all_of_them) == 60


@pytest.mark.parametrize(
    "kind", ["folder", "fifo", "device", "missing", "no-permission", "ort", "loop", "nul", "long"]
)
def test_a_path_that_is_no_file(sandbox: Sandbox, kind: str) -> None:
    path = sandbox.given / ("model.ort" if kind == "ort" else "model.onnx")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "no-permission":
        path.write_bytes(WHOLE)
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    elif kind == "ort":
        path.write_bytes(b"\x10\x00\x00\x00ORTM" + bytes(64))
    elif kind in ("nul", "long"):
        path = sandbox.given / ("a\0b" if kind == "nul" else "n" * 5000)
    elif kind == "loop":
        path.symlink_to("model.onnx")
    sandbox.refuses(lambda: read(path), ModelError)
