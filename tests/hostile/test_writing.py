"""Where results go: never through a link, never over an input, and a sentence where they can't."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import octavo
from hostile.models import external, feeds, layer, quantized, written
from hostile.sandbox import Sandbox
from octavo.calibration import saved
from octavo.core import files
from octavo.errors import OctavoError, OutputError
from octavo.model.files import io as models


@pytest.mark.parametrize("name", ["model.int8.onnx", "model.int8.onnx.data"])
def test_a_link_in_the_output_folder_is_replaced_not_followed(sandbox: Sandbox, name: str) -> None:
    (sandbox.out / name).symlink_to(sandbox.secret)
    sandbox.gives(lambda: quantized(layer(), sandbox.out, feeds(), external_data=True))
    assert not (sandbox.out / name).is_symlink()


@pytest.mark.parametrize("name", ["a.stats", "plan.json", "recipe.yaml", "r.html", "a.stats.checkpoint"])
def test_other_outputs_replace_a_link_too(sandbox: Sandbox, name: str) -> None:
    path = sandbox.out / name
    path.symlink_to(sandbox.secret)

    def write() -> None:
        plan = octavo.plan(layer())
        if name == "a.stats":
            octavo.calibrate(layer(), plan, feeds(), output=path, threads=1)
        elif name == "plan.json":
            plan.save(path)
        elif name == "recipe.yaml":
            octavo.W8A8.save(path)
        elif name == "r.html":
            octavo.report(octavo.quantize(layer(), feeds(), threads=1, effort="plain"), output=path)
        else:
            saved.Checkpoint(path).write(octavo.calibrate(layer(), plan, feeds(), threads=1))

    sandbox.gives(write)
    assert not path.is_symlink()


@pytest.mark.parametrize("way", ["same", "link", "hard-link", "weights", "dotted"])
def test_an_input_is_never_overwritten(sandbox: Sandbox, way: str) -> None:
    (sandbox.given / "w.data").write_bytes(np.ones((32, 32), np.float32).tobytes())
    path = written(external({"location": "w.data"}), sandbox.given, "w")
    target = {
        "same": path,
        "link": sandbox.given / "link.onnx",
        "hard-link": sandbox.given / "hard.onnx",
        "weights": sandbox.given / "w.data",
        "dotted": sandbox.given / "." / ".." / "given" / "w",
    }[way]
    if way == "link":
        target.symlink_to(path)
    elif way == "hard-link":
        os.link(path, target)
    sandbox.refuses(
        lambda: octavo.quantize(path, feeds(), output=target, threads=1, effort="plain"), OutputError
    )


PLACES: dict[str, Callable[[Sandbox], Path]] = {
    "no-folder": lambda sandbox: sandbox.out / "missing" / "m.onnx",
    "a-folder": lambda sandbox: sandbox.out,
    "below-a-file": lambda sandbox: sandbox.secret / "m.onnx",
    "name-too-long": lambda sandbox: sandbox.out / ("n" * 300 + ".onnx"),
    "device-folder": lambda sandbox: Path("/dev/null/m.onnx"),
    "proc": lambda sandbox: Path("/proc/self/m.onnx"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_place_that_can_not_be_written(sandbox: Sandbox, place: Callable[[Sandbox], Path]) -> None:
    target = place(sandbox)
    before = list(sandbox.out.iterdir())
    outcome = sandbox.run_unwatched(
        lambda: octavo.quantize(layer(), feeds(), output=target, threads=1, effort="plain")
    )
    assert outcome.error is not None
    assert issubclass(outcome.error, OctavoError), outcome.trace
    assert list(sandbox.out.iterdir()) == before


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(OutputError, match="Read-only"), files.replacing([tmp_path / "a.json"]):
            pass


def test_no_output_is_begun_where_another_has_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(layer(), tmp_path)
    Path("locked").mkdir()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "locked" and access(path, mode))
    code, _, said = _command("quantize", "model.onnx", "-o", "a.onnx", "--card", "locked/card.md")
    assert (code, Path("a.onnx").exists()) == (1, False), said
    assert "choose another folder" in said


def test_a_file_that_grows_too_large_for_the_disk(sandbox: Sandbox) -> None:
    """The limit on the size of files stands in for a full disk."""
    rows = np.zeros((8200, 8192), np.float32)
    made = layer()
    made.graph.initializer[0].dims[:] = rows.shape
    made.graph.initializer[0].raw_data = rows.tobytes()
    message = sandbox.refuses(lambda: models.save(models.load(made), sandbox.out / "m.onnx"), OutputError)
    assert "can't be written" in message


def _command(*arguments: str) -> tuple[int, str, str]:
    from octavo.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


COMMANDS: dict[str, tuple[str, ...]] = {
    "model-garbage": ("quantize", "garbage", "-o", "{out}/m.onnx"),
    "model-outside": ("quantize", "outside.onnx", "-o", "{out}/m.onnx"),
    "model-missing": ("inspect", "nothing.onnx"),
    "data-garbage": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--data", "garbage.npz"),
    "data-call-missing": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--data", "no_such_module:feeds"),
    "recipe-garbage": ("plan", "model.onnx", "--recipe", "garbage.yaml"),
    "plan-garbage": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--plan", "garbage.json"),
    "stats-garbage": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--stats", "garbage"),
    "table-garbage": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--table", "garbage.flatbuffers"),
    "output-in-a-loop-of-links": ("quantize", "model.onnx", "-o", "loop/m.onnx"),
    "output-with-an-endless-name": ("quantize", "model.onnx", "-o", "{out}/" + "n" * 300),
    "manifest-with-an-endless-name": ("quantize", "model.onnx", "-o", "{out}/" + "n" * 245, "--manifest"),
    "threads-without-end": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--plain", "--threads", "9" * 9),
    "data-call-of-a-file": ("quantize", "model.onnx", "-o", "{out}/m.onnx", "--data", "call.py:feeds"),
    "data-call-in-a-module-that-raises": (
        "quantize",
        "model.onnx",
        "-o",
        "{out}/m.onnx",
        "--data",
        "call:feeds",
    ),
    "report-garbage": ("report", "garbage.json", "-o", "{out}/r.html"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_the_command_line_says_a_sentence(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    written(layer(), sandbox.given)
    written(external({"location": "../elsewhere/secret.bin"}), sandbox.given, "outside.onnx")
    for name in ("garbage", "garbage.npz", "garbage.yaml", "garbage.json", "garbage.flatbuffers"):
        (sandbox.given / name).write_bytes(b"\xff\xfe\x1b[31m{[\0" * 9)
    (sandbox.given / "loop").symlink_to("loop")
    (sandbox.given / "call.py").write_text("def __getattr__(name): raise RuntimeError('\\x1b[31m')")
    given = [argument.format(out=sandbox.out) for argument in arguments]
    code, printed, said = sandbox.gives(lambda: _command(*given, "--json"))
    assert code in (1, 2), said
    assert "Traceback" not in said
    assert "\x1b" not in said + printed
    assert said.rstrip().endswith((".", "?"))
    assert json.loads(printed)["error"]["exit_code"] == code
    assert list(sandbox.out.iterdir()) == []
