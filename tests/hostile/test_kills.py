"""Bad luck: runs that are killed, that meet, that crowd, that lose their files or their disk under way."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from quantizing import run

import octavo
from hostile.models import WIDTH, changed, external, feeds, layer, written
from hostile.sandbox import Sandbox
from octavo.core import files, leftovers
from octavo.errors import ModelError, OctavoError, OutputError
from octavo.model.files import io as models
from octavo.result import write_verified

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only there can leftovers be told from others' files"
)
KILLS = 20
ONES = np.ones((WIDTH, WIDTH), np.float32).tobytes()


def _forked(action: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return child


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)


def _quantize(folder: Path, seed: int, name: str = "m.onnx") -> None:
    octavo.quantize(
        layer(_weights(seed)), feeds(), output=folder / name, external_data=True, threads=1, effort="plain"
    )


@linux
def test_killed_at_any_moment_a_quantization_leaves_the_old_model_or_the_new(tmp_path: Path) -> None:
    fresh, folder = tmp_path / "new", tmp_path / "out"
    fresh.mkdir()
    folder.mkdir()
    _quantize(folder, 0)
    old = _content(folder)
    began = time.monotonic()
    assert _ended(_forked(lambda: _quantize(fresh, 1))) == 0
    span = time.monotonic() - began
    new = _content(fresh)
    killed = 0
    for number in range(KILLS):
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in old.items():
            (folder / name).write_bytes(content)
        child = _forked(lambda: _quantize(folder, 1))
        time.sleep(span * number / KILLS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        killed += _ended(child) != 0
        files.sweep(folder)
        assert _content(folder) in (old, new)
        assert sorted(path.name for path in folder.iterdir()) == sorted(old)
    assert killed
    print(
        f"\n{killed} of {KILLS} runs were killed in mid-work: each left the old model whole, or the new one"
    )


@linux
def test_a_killed_calibration_goes_on_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.calibration.saved.INTERVAL", 0.0)
    monkeypatch.setattr("octavo.calibration.saved._MIN_WORK", 0)
    written(layer(), tmp_path)
    data = tmp_path / "calib.npz"
    np.savez(data, x=np.concatenate([one["x"] for one in feeds(24)]))
    plan = octavo.plan(layer())

    def calibrate(name: str, progress: Any = None) -> None:
        octavo.calibrate(
            tmp_path / "model.onnx",
            plan,
            data,
            output=tmp_path / name,
            threads=1,
            engine="serial",
            progress=progress,
        )

    calibrate("lone.stats")

    def die(phase: str, done: int, total: int | None) -> None:
        if done >= 5:
            os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        assert _ended(_forked(lambda: calibrate("a.stats", die))) == -signal.SIGKILL
        assert not (tmp_path / "a.stats").exists()
    calibrate("a.stats")
    assert (tmp_path / "a.stats").read_bytes() == (tmp_path / "lone.stats").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.stats", "calib.npz", "lone.stats", "model.onnx"}


def test_of_runs_to_one_output_one_wins_whole(tmp_path: Path) -> None:
    """Models with their weights in a file beside them, so that a mixture would be possible."""
    wholes = []
    results = []
    for seed in range(4):
        lone = tmp_path / str(seed)
        lone.mkdir()
        results.append(octavo.quantize(layer(_weights(seed)), feeds(), threads=1, effort="plain").model)
        models.save(results[-1], lone / "m.onnx", external_data=True)
        wholes.append(_content(lone))
    folder = tmp_path / "out"
    folder.mkdir()

    def write_often(seed: int) -> None:
        for _ in range(10):
            models.save(results[seed], folder / "m.onnx", external_data=True)

    children = [_forked(lambda seed=seed: write_often(seed)) for seed in range(4)]  # type: ignore[misc]
    assert [_ended(child) for child in children] == [0] * 4
    assert _content(folder) in wholes
    assert {path.name for path in folder.iterdir()} == {"m.onnx", "m.onnx.data"}


def test_eight_processes_at_once_give_what_one_gives(tmp_path: Path) -> None:
    model = written(layer(), tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    octavo.quantize(model, feeds(), output=tmp_path / "lone.onnx", threads=1, effort="plain")

    def quantize(number: int) -> None:
        octavo.quantize(model, feeds(), output=out / f"{number}.onnx", threads=1, effort="plain")

    children = [_forked(lambda number=number: quantize(number)) for number in range(8)]  # type: ignore[misc]
    assert [_ended(child) for child in children] == [0] * 8
    lone = (tmp_path / "lone.onnx").read_bytes()
    assert _content(out) == {f"{number}.onnx": lone for number in range(8)}
    print(f"\n8 processes at once: 8 models of {len(lone)} bytes, each equal to that of a lone run")


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_too_small_is_said_before_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(1000, 900, 100))
    seen: list[int] = []

    def data() -> Iterator[dict[str, np.ndarray]]:
        seen.append(1)
        yield from feeds()

    with pytest.raises(OutputError, match=r"takes .* and .* has 100 bytes free"):
        octavo.quantize(layer(), data(), output=tmp_path / "m.onnx", threads=1, effort="plain")
    assert not seen
    assert list(tmp_path.iterdir()) == []


def test_a_disk_too_small_for_the_whole_model_is_said_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"old")
    monkeypatch.setattr("shutil.disk_usage", lambda path: _Usage(10000, 9000, 1000))
    result = octavo.quantize(layer(), feeds(), threads=1, effort="plain")
    with pytest.raises(OutputError, match=r"make room"):
        write_verified(result.model, tmp_path / "m.onnx", feeds(1)[0])
    assert _content(tmp_path) == {"m.onnx": b"old"}


def test_a_read_only_folder(sandbox: Sandbox) -> None:
    """Tried as a user who may not write there, whoever runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "m.onnx").write_bytes(b"old")
        folder.chmod(0o555)

        def write() -> None:
            if os.geteuid() == 0:
                os.setuid(65534)
            octavo.quantize(layer(), feeds(), output=folder / "m.onnx", threads=1, effort="plain")

        outcome = sandbox.run_unwatched(write)
        assert outcome.error is OutputError, outcome.trace
        assert "Permission denied" in outcome.message
        assert _content(folder) == {"m.onnx": b"old"}
        folder.chmod(0o755)


LOSSES: dict[str, Callable[[Path], object]] = {
    "model-removed": lambda folder: (folder / "model.onnx").unlink(),
    "weights-removed": lambda folder: (folder / "w.data").unlink(),
    "weights-cut-short": lambda folder: os.truncate(folder / "w.data", 100),
    "weights-emptied": lambda folder: os.truncate(folder / "w.data", 0),
    "weights-replaced": lambda folder: (folder / "w.data").write_bytes(bytes(4 * WIDTH * WIDTH)),
    "model-replaced": lambda folder: (folder / "model.onnx").write_bytes(b"\xff" * 99),
    "folder-renamed": lambda folder: folder.rename(folder.with_name("other")),
    "weights-become-a-folder": lambda folder: ((folder / "w.data").unlink(), (folder / "w.data").mkdir()),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_input_that_vanishes_under_way(sandbox: Sandbox, lose: Callable[[Path], object]) -> None:
    """While data is read, when the model has been loaded: a sentence, or a right result of what was read."""
    given = external({"location": "w.data"})
    whole = changed(lambda made: setattr(made.graph.initializer[0], "raw_data", ONES))

    def lossy(folder: Path) -> Iterator[dict[str, np.ndarray]]:
        lose(folder)
        yield from feeds()

    def quantize() -> bytes:
        folder = sandbox.out / "in"
        folder.mkdir()
        (folder / "w.data").write_bytes(ONES)
        path = written(given, folder)
        target = sandbox.out / "m.onnx"
        try:
            octavo.quantize(path, lossy(folder), output=target, threads=1, effort="plain")
        except OctavoError:
            assert not target.exists()
            raise
        return target.read_bytes()

    outcome = sandbox.settles(quantize)
    if outcome.error is None:
        result = onnx.load_model_from_string(outcome.value)
        for sample in feeds():
            right, got = run(whole, sample)["y"], run(result, sample)["y"]
            assert np.abs(right - got).max() <= 0.06 * float(np.abs(right).max())


def test_weights_cut_short_while_another_is_held(tmp_path: Path) -> None:
    """An array keeps the file mapped; the next read looks at the file again before it touches it."""
    count = 4 * WIDTH * WIDTH
    (tmp_path / "w.data").write_bytes(bytes(count))
    model = models.load(written(external({"location": "w.data"}), tmp_path))
    tensor = next(
        value.const_value for value in model.graph.initializers.values() if value.const_value.nbytes == count
    )
    held = tensor.numpy()
    os.truncate(tmp_path / "w.data", 0)
    with pytest.raises(ModelError, match="changed after the model was loaded"):
        tensor.numpy()
    assert held.shape == (WIDTH, WIDTH)


@linux
def test_only_what_dead_processes_left_is_cleared(tmp_path: Path) -> None:
    dead = _forked(lambda: None)
    assert _ended(dead) == 0
    mine = leftovers.new_name("tmp")
    system, random = leftovers.system(), "0123456789abcdef"
    kept = [
        mine,
        f".octavo-{system}-1-{random}.tmp",
        f".octavo-deadbeef-{dead}-{random}.tmp",
        f".octavo-{system}-{dead}-short.tmp",
        f".octavo-{system}-{dead}-{random}.tmp.txt.onnx"[:20],
        ".octavo-settings",
        "model.onnx",
    ]
    for name in kept:
        (tmp_path / name).write_bytes(b"kept")
    gone = f".octavo-{system}-{dead}-{random}"
    (tmp_path / f"{gone}.tmp").write_bytes(b"gone")
    (tmp_path / f"{gone}.dir").mkdir()
    (tmp_path / f"{gone}.dir" / "m.onnx").symlink_to(tmp_path / "model.onnx")
    files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    assert (tmp_path / "model.onnx").read_bytes() == b"kept"


def test_a_folder_locked_for_long_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("octavo.core.files._PATIENCE", 0.05)
    holder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="locked by another run"):
            octavo.W8A8.save(tmp_path / "recipe.yaml")
    finally:
        os.close(holder)
    octavo.W8A8.save(tmp_path / "recipe.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
