"""Files that are read on the way: manifests, results, token ids, those of the drop-in's tools; its logs."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octavo
from hostile.models import WIDTH, feeds, layer, written
from hostile.sandbox import Sandbox
from octavo.core.files import read_bytes
from octavo.errors import DataError, ModelError, OctavoError, TableError
from octavo.quantization import static_quantize_runner
from octavo.quantization._calibrate_cli import load_quantization_params
from octavo.quantization._collector import finite
from octavo.quantization._streamed import tell

DEEP = "[" * 200_000
CONTENTS: dict[str, Callable[[Path], object]] = {
    "deep": lambda path: path.write_text(DEEP),
    "deep-objects": lambda path: path.write_text('{"a":' * 200_000),
    "digits": lambda path: path.write_text(f'{{"recipe": {"9" * 10_000}}}'),
    "no-utf8": lambda path: path.write_bytes(b"\xff\xfe{"),
    "a-list": lambda path: path.write_text("[1]"),
    "other-types": lambda path: path.write_text('{"recipe": 3, "source": [], "kind": {}}'),
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_manifest_beside_a_model(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    octavo.quantize(layer(), feeds(), output=sandbox.given / "m.onnx", threads=1, effort="plain")
    make(sandbox.given / "m.onnx.manifest.json")
    page = sandbox.out / "r.html"
    sandbox.settles(lambda: octavo.report(sandbox.given / "m.onnx", output=page))


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS.keys())
def test_a_result_for_a_page(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    make(sandbox.given / "r.json")
    sandbox.refuses(
        lambda: octavo.report(sandbox.given / "r.json", output=sandbox.out / "r.html"), TableError
    )


@pytest.mark.parametrize("make", CONTENTS.values(), ids=CONTENTS.keys())
@pytest.mark.parametrize(
    "read",
    [load_quantization_params, static_quantize_runner.get_tensor_quant_overrides],
    ids=["parameters", "overrides"],
)
def test_a_json_file_of_the_drop_ins_tools(
    sandbox: Sandbox, make: Callable[[Path], object], read: Callable[[Path], Any]
) -> None:
    make(sandbox.given / "a.json")
    sandbox.refuses(lambda: read(sandbox.given / "a.json"), OctavoError)


def _tensor(**fields: Any) -> bytes:
    made = onnx.TensorProto(data_type=1, dims=[1, WIDTH], raw_data=bytes(4 * WIDTH))
    for name, value in fields.items():
        made.ClearField(name)
        getattr(made, name).extend(value) if isinstance(value, list) else setattr(made, name, value)
    return made.SerializeToString()


def _elsewhere(location: str) -> bytes:
    made = onnx.TensorProto(data_type=2, dims=[512], data_location=onnx.TensorProto.EXTERNAL)
    made.external_data.add(key="location", value=location)
    return made.SerializeToString()


SAMPLES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\xff" * 50),
    "terabytes": lambda path: path.write_bytes(_tensor(dims=[1 << 40])),
    "negative": lambda path: path.write_bytes(_tensor(dims=[-1, -WIDTH])),
    "beside": lambda path: path.write_bytes(_elsewhere("model.onnx")),
    "outside": lambda path: path.write_bytes(_elsewhere("../elsewhere/secret.bin")),
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("make", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_sample_of_the_drop_ins_tools(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    written(layer(), sandbox.given)
    path = sandbox.given / "input_0.pb"
    make(path)
    read = static_quantize_runner.OnnxModelCalibrationDataReader.read_onnx_pb_data
    sandbox.refuses(lambda: read(path), DataError)


def _header(shape: tuple[int, ...]) -> bytes:
    text = repr({"descr": "<i8", "fortran_order": False, "shape": shape}).encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


TOKENS: dict[str, Callable[[Path], object]] = {
    "terabytes": lambda path: path.write_bytes(_header((1 << 40,)) + bytes(64)),
    "overflow": lambda path: path.write_bytes(_header((1 << 62, 1 << 62)) + bytes(64)),
    "negative": lambda path: path.write_bytes(_header((-8,)) + bytes(64)),
    "objects": lambda path: np.save(path, np.array([{}, []], object), allow_pickle=True),
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("make", TOKENS.values(), ids=TOKENS.keys())
def test_token_ids(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    model = written(layer(), sandbox.given)
    make(sandbox.given / "a.npy")
    sandbox.refuses(lambda: octavo.evaluate(model, sandbox.given / "a.npy", "perplexity"), DataError)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_plain_files_are_read_whole(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    path = sandbox.given / "plan.json"
    make(path)
    sandbox.refuses(lambda: octavo.Plan.load(path), TableError)
    with pytest.raises(OSError, match=r"regular file|directory"):
        read_bytes(path, 100)


def test_names_in_the_drop_ins_logs_are_words(caplog: pytest.LogCaptureFixture) -> None:
    name = "\x1b]0;owned\x07\n\u202e" + "n" * (1 << 20)

    class State:
        non_finite = True

    with caplog.at_level(logging.INFO, "octavo.quantization"):
        tell({name: f"because of {name}"})
        finite({name: State(), f"{name}2": State()})  # type: ignore[dict-item]
    assert len(caplog.messages) == 2
    for message in caplog.messages:
        assert message.isprintable()
        assert len(message) < 2000


def _no_number(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def test_a_manifest_is_json_where_nothing_was_lost(sandbox: Sandbox) -> None:
    """Weights of zeros are quantized exactly: the ratio of signal to noise is infinite."""
    made = layer(np.zeros((WIDTH, WIDTH), np.float32))

    def manifest() -> Any:
        result = octavo.quantize(made, feeds(4), effort="standard", threads=1)
        assert "Infinity" in json.dumps(result.manifest(), default=str)
        path = result.save_manifest(sandbox.out / "m.json")
        return json.loads(path.read_text(), parse_constant=_no_number)

    assert sandbox.gives(manifest)["tuning"]


def test_json_keeps_every_name_as_it_is(sandbox: Sandbox) -> None:
    """What is made for machines is not shortened: names are found again."""
    made = layer()
    made.graph.node[0].name = name = "\x1b[31m" + "n" * 5000
    plan = octavo.plan(made)
    plan.save(sandbox.out / "plan.json")
    assert name in json.dumps(json.loads((sandbox.out / "plan.json").read_text()), ensure_ascii=False) or any(
        one == name for one in octavo.Plan.load(sandbox.out / "plan.json").nodes
    )


GGUF: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "magic-alone": lambda path: path.write_bytes(b"GGUF"),
    "counts-2-to-the-63": lambda path: path.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 16),
    "arrays-100000-deep": lambda path: path.write_bytes(
        b"GGUF\x03\0\0\0" + bytes(8) + (1).to_bytes(8, "little") + (1).to_bytes(8, "little") + b"a"
        + (b"\x09\0\0\0" + b"\x09\0\0\0" + (1).to_bytes(8, "little"))
        + (b"\x09\0\0\0" + (1).to_bytes(8, "little")) * 100_000
    ),
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "missing": lambda path: None,
}  # fmt: skip


@pytest.mark.parametrize("make", GGUF.values(), ids=GGUF.keys())
def test_a_gguf_file(sandbox: Sandbox, make: Callable[[Path], object]) -> None:
    from octavo.model.files import gguf_format

    path = sandbox.given / "a.gguf"
    make(path)
    sandbox.refuses(lambda: gguf_format.read(path), ModelError)
