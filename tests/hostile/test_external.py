"""External weights: every way to name a file, or a stretch of it, that is not the model's own."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from hostile.models import WIDTH, external, layer, read, written
from hostile.sandbox import Sandbox
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query

BYTES = 4 * WIDTH * WIDTH
LONG = "a" * 5000

LOCATIONS = {
    "absolute": "{secret}",
    "parent": "../elsewhere/secret.bin",
    "parent-inside": "sub/../../elsewhere/secret.bin",
    "parent-that-comes-back": "../given/weights.bin",
    "backslashes": "..\\elsewhere\\secret.bin",
    "drive": "C:\\secret.bin",
    "drive-relative": "C:secret.bin",
    "unc": "\\\\host\\share\\secret.bin",
    "unc-slashes": "//host/share/secret.bin",
    "rooted-on-windows": "\\secret.bin",
    "stream-of-ntfs": "weights.bin:stream",
    "device-of-windows": "NUL",
    "device-with-ending": "con.bin",
    "nul-character": "weights.bin\0.txt",
    "empty": "",
    "dot": ".",
    "folder": "sub",
    "folder-with-slash": "sub/",
    "absolute-device": "/dev/zero",
    "proc": "/proc/self/environ",
    "url": "https://example.org/weights.bin",
    "file-url": "file:///etc/passwd",
    "home": "~/weights.bin",
    "variable": "$HOME/weights.bin",
    "too-long": LONG,
    "too-deep": "a/" * 2000 + "b",
    "missing": "nothing.bin",
    "in-memory-marker": "*/_ORT_MEM_ADDR_/*",
    "newline": "weights.bin\n../x",
    "sibling-with-the-same-prefix": "../given_evil/weights.bin",
}


@pytest.mark.parametrize("location", LOCATIONS.values(), ids=LOCATIONS.keys())
def test_a_location_that_is_not_a_file_beside_the_model(sandbox: Sandbox, location: str) -> None:
    (sandbox.given / "sub").mkdir()
    (sandbox.given / "weights.bin").write_bytes(bytes(BYTES))
    (sandbox.root / "given_evil").mkdir()
    (sandbox.root / "given_evil" / "weights.bin").write_bytes(bytes(BYTES))
    made = written(external({"location": location.format(secret=sandbox.secret)}), sandbox.given)
    sandbox.refuses_each([lambda: read(made), lambda: read(made.read_bytes(), sandbox.given)], ModelError)


def test_a_location_in_other_case_is_the_file_of_the_folder_or_none(sandbox: Sandbox) -> None:
    """On a file system that folds case it is the very file; on others there is none."""
    (sandbox.given / "weights.bin").write_bytes(bytes(BYTES))
    made = written(external({"location": "WEIGHTS.BIN"}), sandbox.given)
    outcome = sandbox.settles(lambda: read(made))
    assert (outcome.error is None) is (sandbox.given / "WEIGHTS.BIN").exists()


def _symlink(sandbox: Sandbox) -> str:
    (sandbox.given / "w.bin").symlink_to(sandbox.secret)
    return "w.bin"


def _link_of_link(sandbox: Sandbox) -> str:
    (sandbox.given / "one").symlink_to(sandbox.secret)
    (sandbox.given / "two").symlink_to("one")
    return "two"


def _linked_folder(sandbox: Sandbox) -> str:
    (sandbox.given / "sub").symlink_to(sandbox.secret.parent)
    return "sub/secret.bin"


def _hard_link(sandbox: Sandbox) -> str:
    os.link(sandbox.secret, sandbox.given / "w.bin")
    return "w.bin"


def _loop(sandbox: Sandbox) -> str:
    (sandbox.given / "a").symlink_to("b")
    (sandbox.given / "b").symlink_to("a")
    return "a"


def _fifo(sandbox: Sandbox) -> str:
    os.mkfifo(sandbox.given / "pipe")
    return "pipe"


def _socket(sandbox: Sandbox) -> str:
    here = Path.cwd()
    with socket.socket(socket.AF_UNIX) as opened:
        os.chdir(sandbox.given)
        opened.bind("door")
        os.chdir(here)
    return "door"


def _device(sandbox: Sandbox) -> str:
    (sandbox.given / "zero").symlink_to("/dev/zero")
    return "zero"


def _process(sandbox: Sandbox) -> str:
    (sandbox.given / "environment").symlink_to("/proc/self/environ")
    return "environment"


@pytest.mark.parametrize(
    "make", [_symlink, _link_of_link, _linked_folder, _hard_link, _loop, _fifo, _socket, _device, _process]
)
def test_a_file_that_is_no_plain_file_of_the_folder(sandbox: Sandbox, make: Callable[[Sandbox], str]) -> None:
    made = written(external({"location": make(sandbox), "length": str(BYTES)}), sandbox.given)
    sandbox.refuses(lambda: read(made), ModelError)


STRETCHES: dict[str, dict[str, str]] = {
    "offset-not-a-number": {"offset": "four"},
    "offset-a-fraction": {"offset": "1.5"},
    "offset-empty": {"offset": ""},
    "offset-negative": {"offset": "-4"},
    "offset-beyond": {"offset": "1048576"},
    "offset-just-beyond": {"offset": "1"},
    "offset-int64": {"offset": str(2**63 - 1)},
    "offset-wraps-uint64": {"offset": str(2**64)},
    "offset-of-5000-digits": {"offset": "9" * 5000},
    "length-not-a-number": {"length": "all"},
    "length-negative": {"length": "-1"},
    "length-zero": {"length": "0"},
    "length-short": {"length": str(BYTES - 1)},
    "length-long": {"length": str(BYTES + 1)},
    "length-petabyte": {"length": str(10**15)},
    "length-and-offset-wrap": {"offset": str(2**64 - BYTES), "length": str(BYTES)},
    "checksum-of-other-content": {"checksum": "0" * 40},
    "checksum-no-digest": {"checksum": "../../etc/passwd"},
}


@pytest.mark.parametrize("entries", STRETCHES.values(), ids=STRETCHES.keys())
def test_a_stretch_that_is_not_in_the_file(sandbox: Sandbox, entries: dict[str, str]) -> None:
    (sandbox.given / "w.bin").write_bytes(bytes(BYTES))
    made = written(external({"location": "w.bin", **entries}), sandbox.given)
    sandbox.refuses(lambda: read(made), ModelError)


SHAPES = {
    "larger-than-the-file": (WIDTH, WIDTH + 1),
    "overflows-int64": (2**32, 2**32),
    "overflows-to-the-right-size": (2**62 + 1, WIDTH, WIDTH, 4),
    "negative": (-WIDTH, -WIDTH),
    "zero-times-huge": (0, 2**62),
    "rank-65": (1,) * 65,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_shape_that_does_not_fit_the_file(sandbox: Sandbox, shape: tuple[int, ...]) -> None:
    (sandbox.given / "w.bin").write_bytes(bytes(BYTES))
    made = written(external({"location": "w.bin"}, shape), sandbox.given)
    sandbox.refuses(lambda: read(made), ModelError)


def _two_weights(first: tuple[int, int], second: tuple[int, int]) -> onnx.ModelProto:
    made = layer()
    for weight, (offset, length) in zip(made.graph.initializer, (first, second), strict=True):
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.dims[:] = [length // 4]
        for key, value in (("location", "w.bin"), ("offset", str(offset)), ("length", str(length))):
            weight.external_data.add(key=key, value=value)
    return made


@pytest.mark.parametrize(("first", "second"), [((0, 16), (8, 16)), ((8, 16), (0, 16)), ((0, 32), (8, 8))])
def test_stretches_that_overlap(sandbox: Sandbox, first: tuple[int, int], second: tuple[int, int]) -> None:
    (sandbox.given / "w.bin").write_bytes(bytes(BYTES))
    made = written(_two_weights(first, second), sandbox.given)
    sandbox.refuses(lambda: read(made), ModelError, "overlap")


@pytest.mark.parametrize(("first", "second"), [((0, 16), (0, 16)), ((0, 16), (16, 16)), ((16, 16), (0, 0))])
def test_shared_and_adjacent_stretches_are_right(
    sandbox: Sandbox, first: tuple[int, int], second: tuple[int, int]
) -> None:
    (sandbox.given / "w.bin").write_bytes(np.arange(16, dtype=np.float32).tobytes())
    made = written(_two_weights(first, second), sandbox.given)

    def values() -> list[list[float]]:
        return [found.numpy().tolist() for found in query.tensors(io.load(made))]

    assert sandbox.gives(values) == [
        list(range(offset // 4, (offset + length) // 4)) for offset, length in (first, second)
    ]


def test_a_checksum_that_fits(sandbox: Sandbox) -> None:
    content = np.arange(WIDTH * WIDTH, dtype=np.float32).tobytes()
    (sandbox.given / "w.bin").write_bytes(content)
    digest = hashlib.sha1(content, usedforsecurity=False).hexdigest()
    made = written(external({"location": "w.bin", "checksum": digest}), sandbox.given)
    assert sandbox.gives(lambda: read(made)) == 3


@pytest.mark.parametrize("field", ["t", "tensors", "sparse_tensor"])
@pytest.mark.parametrize("place", ["graph", "function", "branch"])
def test_an_attribute_that_names_a_file(sandbox: Sandbox, field: str, place: str) -> None:
    made = layer()
    where = onnx.NodeProto(op_type="Mystery", domain="own", name="odd", input=["x"], output=["z"])
    attribute = where.attribute.add(name="value")
    hidden = {"t": attribute.t, "tensors": None, "sparse_tensor": attribute.sparse_tensor.values}[field]
    kinds = {"t": "TENSOR", "tensors": "TENSORS", "sparse_tensor": "SPARSE_TENSOR"}
    for other in {"t", "sparse_tensor"} - {field}:
        attribute.ClearField(other)
    hidden = attribute.tensors.add() if hidden is None else hidden
    attribute.type = onnx.AttributeProto.AttributeType.Value(kinds[field])
    hidden.CopyFrom(external({"location": str(sandbox.secret)}).graph.initializer[0])
    made.opset_import.add(domain="own", version=1)
    if place == "graph":
        made.graph.node.append(where)
    elif place == "branch":
        branch = made.graph.node.add(op_type="If", input=["x"], output=["q"]).attribute.add(
            name="then_branch"
        )
        branch.type = onnx.AttributeProto.GRAPH
        branch.g.node.append(where)
    else:
        made.functions.add(name="f", domain="own", input=["x"], output=["z"], node=[where])
    path = written(made, sandbox.given)
    sandbox.refuses(lambda: read(path), ModelError)


def test_a_folder_that_is_not_known_is_not_the_current_one(sandbox: Sandbox) -> None:
    (sandbox.given / "w.bin").write_bytes(bytes(BYTES))
    made = external({"location": "w.bin"})
    sandbox.refuses(lambda: read(made), ModelError, "folder")
    sandbox.refuses(lambda: read(made.SerializeToString()), ModelError, "folder")


def test_locations_of_the_model_are_never_written_to(sandbox: Sandbox) -> None:
    (sandbox.given / "w.bin").write_bytes(bytes(BYTES))
    made = written(external({"location": "w.bin"}), sandbox.given)
    names = sandbox.gives(lambda: [p.name for p in io.save(io.load(made), Path(sandbox.out) / "m.onnx",
                                                           external_data=True)])  # fmt: skip
    assert names == ["m.onnx", "m.onnx.data"]
