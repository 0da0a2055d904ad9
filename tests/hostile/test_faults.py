"""Every file that is made, written, synced, renamed or given its permissions is made to fail, in turn.

Ways to fail: the disk is full, the permission is missing, the user interrupts before the call or just after
it, the process is killed before or after it. Whatever fails, the folder holds what it held before, or what a
run that ends well leaves there; nothing between the two, and nothing beside it. A killed process can't clean
up after itself: there that holds when the next run has looked at the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from hostile.models import WIDTH, feeds, layer
from octavo.calibration import saved, tables
from octavo.core import files
from octavo.core.stats import Range
from octavo.errors import OutputError
from octavo.reporting import html

Content = dict[str, bytes]
WAYS = ("full", "forbidden", "interrupted", "interrupted-after")


class Faults:
    """Counts calls that change files, and lets one of them fail."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._folder = str(folder)
        self.calls: list[str] = []
        self._at: int | None = None
        self._way = ""
        for name in ("replace", "rename", "mkdir", "chmod", "fsync", "open", "fdopen"):
            patch.setattr(os, name, self._watched(name, getattr(os, name)))

    def arm(self, at: int | None, way: str = "") -> None:
        """Let the call with this number fail; None: let all pass."""
        self._at, self._way, self.calls = at, way, []

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if name == "fdopen":
                return _File(real(*arguments, **more), self)
            if name == "open" and not (len(arguments) > 1 and arguments[1] & os.O_CREAT):
                return real(*arguments, **more)
            if name != "fsync" and not str(arguments[0]).startswith(self._folder):
                return real(*arguments, **more)
            return self.through(name, lambda: real(*arguments, **more))

        return call

    def through(self, name: str, real: Callable[[], Any]) -> Any:
        """One call that may be the one."""
        self.calls.append(name)
        if len(self.calls) - 1 != self._at:
            return real()
        if self._way == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._way == "forbidden":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if self._way.endswith("-after"):
            real()
        if self._way.startswith("killed"):
            os._exit(9)
        raise KeyboardInterrupt


class _File:
    """A file whose writes are counted."""

    def __init__(self, real: Any, faults: Faults) -> None:
        self._real, self._faults = real, faults

    def write(self, content: Any) -> Any:
        return self._faults.through("write", lambda: self._real.write(content))

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _killed(now: Callable[[Path], object], folder: Path, faults: Faults, at: int, way: str) -> None:
    """Let the call with this number be a process's last."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            faults.arm(at, way)
            now(folder)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def _content(folder: Path) -> Content:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in folder.rglob("*")}


def _quantization(old: bool) -> Callable[[Path], object]:
    made = layer(np.random.default_rng(int(old)).standard_normal((WIDTH, WIDTH)).astype(np.float32))
    result = octavo.quantize(made, feeds(), threads=1, effort="plain")

    def write(folder: Path) -> object:
        from octavo.result import write_verified

        return write_verified(result.model, folder / "m.onnx", feeds(1)[0], external_data=True)

    return write


def _calibration(old: bool) -> Callable[[Path], object]:
    plan, data = octavo.plan(layer()), feeds(2, seed=int(old))
    stats = octavo.calibrate(layer(), plan, data, threads=1)

    def write(folder: Path) -> object:
        saved.Checkpoint(folder / "a.stats.checkpoint").write(stats)
        saved.save(stats, folder / "a.stats")
        return saved.Checkpoint(folder / "a.stats.checkpoint").remove()

    return write


def _report(old: bool) -> Callable[[Path], object]:
    result = octavo.quantize(layer(), feeds(seed=int(old)), threads=1, effort="plain")
    return lambda folder: html.report(result, output=folder / "r.html", title=f"{old}")


def _manifest(old: bool) -> Callable[[Path], object]:
    result = octavo.quantize(layer(), feeds(3 + old), threads=1, effort="plain")
    return lambda folder: result.save_manifest(folder / "m.onnx")


def _tables(old: bool) -> Callable[[Path], object]:
    return lambda folder: tables.save_all({"x": Range(0.0, 1.0 + old)}, folder)


def _plan(old: bool) -> Callable[[Path], object]:
    plan = octavo.plan(layer(), exclude=("relu",) if old else ())
    return lambda folder: plan.save(folder / "plan.json")


def _recipe(old: bool) -> Callable[[Path], object]:
    return lambda folder: (octavo.W8A8 if old else octavo.W8A16).save(folder / "recipe.yaml")


JOBS = [_quantization, _calibration, _report, _manifest, _tables, _plan, _recipe]


@pytest.mark.parametrize("fresh", [True, False], ids=["into-an-empty-folder", "over-an-older-output"])
@pytest.mark.parametrize("job", JOBS, ids=[job.__name__.strip("_") for job in JOBS])
def test_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[[bool], Any], fresh: bool
) -> None:
    earlier, now = job(True), job(False)
    folder = tmp_path / "out"
    folder.mkdir()
    if not fresh:
        earlier(folder)
    old = _content(folder)
    faults = Faults(monkeypatch, folder)
    now(folder)
    new, calls = _content(folder), list(faults.calls)
    between = {name: new.get(name, old.get(name)) for name in {*old, *new}}
    assert calls
    ended: Counter[str] = Counter()
    for at in range(len(calls)):
        for way in WAYS:
            _reset(folder, old)
            faults.arm(at, way)
            with contextlib.suppress(OutputError, KeyboardInterrupt):
                now(folder)
            faults.arm(None)
            found = _content(folder)
            found.pop("a.stats.checkpoint", None)  # what an interrupted calibration goes on from
            assert found in (old, new), (calls[at], way, sorted(found), sorted(between))
            ended["old" if found == old else "new"] += 1
    kinds = ", ".join(f"{count} {name}" for name, count in Counter(calls).items())
    print(f"\n{job.__name__.strip('_')}: {len(calls)} calls ({kinds}), {sum(ended.values())} faults:")
    print(f"{ended['old']} left the old state, {ended['new']} the new")


@pytest.mark.skipif(sys.platform != "linux", reason="only there can leftovers be told from others' files")
@pytest.mark.parametrize("fresh", [True, False], ids=["into-an-empty-folder", "over-an-older-output"])
@pytest.mark.parametrize("job", [_quantization, _tables, _plan], ids=["quantization", "tables", "plan"])
def test_a_killed_process_leaves_the_old_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: Callable[[bool], Any], fresh: bool
) -> None:
    earlier, now = job(True), job(False)
    folder = tmp_path / "out"
    folder.mkdir()
    if not fresh:
        earlier(folder)
    old = _content(folder)
    faults = Faults(monkeypatch, folder)
    now(folder)
    new, calls = _content(folder), list(faults.calls)
    ended: Counter[str] = Counter()
    for at in range(len(calls)):
        for way in ("killed", "killed-after"):
            _reset(folder, old)
            _killed(now, folder, faults, at, way)
            files.sweep(folder)
            found = _content(folder)
            assert found in (old, new), (calls[at], way, sorted(found))
            ended["old" if found == old else "new"] += 1
    print(f"\n{job.__name__.strip('_')}: {sum(ended.values())} kills:")
    print(f"{ended['old']} left the old state, {ended['new']} the new")


def _reset(folder: Path, content: Content) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, part in content.items():
        (folder / name).write_bytes(part)
