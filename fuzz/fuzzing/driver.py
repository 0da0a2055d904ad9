"""Shares the time out among harnesses, starts workers, outlives their deaths, and adds up what they did."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzzing.campaign import Found, Journal, Running

FUZZ = Path(__file__).resolve().parents[1]
PATIENCE = 120.0  # seconds of processor time after which an input that does not return is taken for a hang
_SLEEP = 10 * PATIENCE  # seconds of the clock, for an input that waits for something
SLICE = 300.0  # seconds of processor time for which a worker lives, where harnesses have to take turns
_TICKS = os.sysconf("SC_CLK_TCK")  # a second of processor time, as the kernel counts
_OVERTIME = 20.0  # seconds after the end in which workers may finish
_GRACE = 60.0  # seconds for a worker to start and to end by itself


@dataclass
class Tally:
    """What one harness has done."""

    executions: int = 0
    cpu: float = 0.0
    given: float = 0.0  # seconds of workers
    starts: int = 0
    lines: dict[str, set[int]] = field(default_factory=dict)
    found: dict[str, tuple[Found, int]] = field(default_factory=dict)

    def keep(self, found: Found) -> None:
        """Count a finding, and keep its shortest input."""
        known, count = self.found.get(found.signature, (found, 0))
        kept = min(known, found, key=lambda one: len(one.data))
        self.found[found.signature] = (kept, count + 1)

    def add_lines(self, found: dict[str, list[int]]) -> None:
        """Lines that a worker has reached."""
        for name, numbers in found.items():
            self.lines.setdefault(name, set()).update(numbers)


@dataclass
class Worker:
    """A process, and where it leaves what it did."""

    harness: str
    process: subprocess.Popen[bytes]
    home: Path
    begun: float
    budget: float  # seconds of processor time, or of the clock where the kernel does not tell
    journal: Journal | None = None
    hung: bool = False

    def used(self) -> float:
        """Seconds of processor time so far."""
        try:
            words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(words[11]) + int(words[12])) / _TICKS
        except (OSError, IndexError):
            return time.monotonic() - self.begun

    def hangs(self) -> bool:
        """Whether its input has taken too long; one that gets no processor on a busy machine has not."""
        current = self.running()
        if current is None:
            return False
        return current.seconds > PATIENCE and (
            current.seconds > _SLEEP or self.used() - current.used > PATIENCE
        )

    def running(self) -> Running | None:
        """The input that is being run."""
        if self.journal is None and (self.home / "journal").exists():
            with contextlib.suppress(ValueError, OSError):
                self.journal = Journal(self.home / "journal")
        return self.journal.running() if self.journal is not None else None


class Driver:
    """Runs harnesses side by side and in turns, until the time is over."""

    def __init__(
        self,
        names: tuple[str, ...],
        engine: str,
        seconds: float,
        jobs: int,
        seed: int,
        keep: Callable[[Found], object] = lambda found: None,
    ) -> None:
        """``keep`` gets each finding as soon as its worker has ended: a run may be cut off."""
        self._keep = keep
        self.tallies = {name: Tally() for name in names}
        self._engine = engine
        self._end = time.monotonic() + seconds
        self._slice = max(5.0, min(SLICE, seconds * jobs / len(names)))
        self._jobs = jobs
        self._seed = seed
        self._workers: list[Worker] = []
        self._top = Path(tempfile.mkdtemp(prefix="octavo-fuzzing-"))

    def run(self, tell: Callable[[str], None]) -> None:
        """Until the end; an interruption ends it early, and what was found stays."""
        told = time.monotonic()
        try:
            while self._left() > self._least():
                while len(self._workers) < self._jobs and self._left() > 2.0:
                    self._start(self._neediest(), self._engine)
                time.sleep(0.1)
                self._look()
                if time.monotonic() - told > 30.0:
                    told = time.monotonic()
                    tell(self._state())
            self._stop()
            if self._engine == "atheris":
                self._replay()
        except KeyboardInterrupt:
            tell("interrupted")
        finally:
            self._stop()
            shutil.rmtree(self._top, ignore_errors=True)

    def _left(self) -> float:
        return self._end - time.monotonic()

    def _least(self) -> float:
        """The seconds below which it is over: workers may finish, and those that still start do more."""
        if not self._workers:
            return 2.0
        return -_GRACE if any(worker.journal is None for worker in self._workers) else -_OVERTIME

    def _neediest(self) -> str:
        """The harness with the least processor time, what its workers still have before them included."""

        def due(name: str) -> float:
            return self.tallies[name].cpu + sum(w.budget for w in self._workers if w.harness == name)

        return min(self.tallies, key=due)

    def _start(self, name: str, engine: str) -> None:
        self._seed += 1
        pool = self._top / f"pool-{name}"
        home = self._top / f"worker-{self._seed}"
        pool.mkdir(exist_ok=True)
        home.mkdir()
        budget = min(self._slice, self._left())
        request = {"harness": name, "engine": engine, "until": self._end, "budget": budget,
                   "seed": self._seed, "home": str(home), "pool": str(pool)}  # fmt: skip
        paths = [str(FUZZ), str(FUZZ.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1",
                       "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                       "MALLOC_ARENA_MAX": "2"}  # fmt: skip
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "fuzzing.worker", json.dumps(request)],
                cwd=home, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._workers.append(Worker(name, process, home, time.monotonic(), budget))
        self.tallies[name].starts += 1

    def _look(self) -> None:
        """Take in what ended, and end what hangs."""
        for worker in list(self._workers):
            done, status, usage = os.wait4(worker.process.pid, os.WNOHANG)
            if done:
                worker.process.returncode = os.waitstatus_to_exitcode(status)
                self._take_in(worker, usage.ru_utime + usage.ru_stime)
                continue
            if worker.hangs() or worker.used() > worker.budget + _GRACE + PATIENCE:
                worker.hung = True
                worker.process.send_signal(signal.SIGKILL)

    def _take_in(self, worker: Worker, cpu: float) -> None:
        self._workers.remove(worker)
        tally = self.tallies[worker.harness]
        tally.cpu += cpu
        tally.given += time.monotonic() - worker.begun
        current = worker.running()
        tally.executions += worker.journal.executions if worker.journal is not None else 0
        for path in sorted(worker.home.glob("finding-*.json")):
            with contextlib.suppress(ValueError, TypeError):
                self._found(tally, Found(**json.loads(path.read_text())))
        with contextlib.suppress(OSError, ValueError):
            tally.add_lines(json.loads((worker.home / "lines.json").read_text()))
        if worker.process.returncode != 0 or worker.hung:
            self._found(tally, _death(worker, current.data if current is not None else b""))
        if worker.journal is not None:
            worker.journal.close()
        with contextlib.suppress(OSError):
            shutil.rmtree((worker.home / "folder").read_text(), ignore_errors=True)
        shutil.rmtree(worker.home, ignore_errors=True)

    def _found(self, tally: Tally, found: Found) -> None:
        tally.keep(found)
        self._keep(found)

    def _replay(self) -> None:
        """Count the lines that libFuzzer's inputs reach: it counts bytecode, and tells nobody."""
        self._end = time.monotonic() + 300.0
        before = {name: (tally.executions, tally.cpu) for name, tally in self.tallies.items()}
        waiting = list(self.tallies)
        while waiting or self._workers:
            while waiting and len(self._workers) < self._jobs:
                self._start(waiting.pop(), "replay")
            time.sleep(0.1)
            self._look()
        for name, (executions, cpu) in before.items():
            self.tallies[name].executions, self.tallies[name].cpu = executions, cpu

    def _stop(self) -> None:
        for worker in list(self._workers):
            worker.process.kill()
            _, _, usage = os.wait4(worker.process.pid, 0)
            worker.process.returncode = 0
            self._take_in(worker, usage.ru_utime + usage.ru_stime)

    def _state(self) -> str:
        now = sum(w.journal.executions for w in self._workers if w.journal is not None)
        done = sum(tally.executions for tally in self.tallies.values()) + now
        found = sum(len(tally.found) for tally in self.tallies.values())
        return f"{done} executions, {found} findings, {max(0, round(self._left()))} s left"


def _death(worker: Worker, data: bytes) -> Found:
    """A worker that did not end by itself, told by its log."""
    code = worker.process.returncode
    log = (worker.home / "log").read_bytes().decode("utf-8", "replace")
    if worker.hung:
        kind, what = "native hang", "killed"
    elif code < 0:
        kind, what = "crash", signal.Signals(-code).name
    else:
        kind, what = "exit", f"code {code}"
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\S+)', log)
    place = next((f"{Path(f).name}:{n}:{line}" for f, line, n in frames if "/octavo/" in f), "?")
    text = base64.b64encode(data).decode()
    return Found(worker.harness, kind, f"{worker.harness} {kind} {what} {place}", log[-5000:], text)


def findings(tallies: dict[str, Tally]) -> Iterator[dict[str, Any]]:
    """Every finding as plain data."""
    for tally in tallies.values():
        for found, count in tally.found.values():
            yield {"harness": found.harness, "kind": found.kind, "signature": found.signature, "times": count,
                   "trace": found.trace, "data": found.data}  # fmt: skip
