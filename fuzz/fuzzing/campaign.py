"""A worker's share of the work: it runs inputs, counts them, and keeps what was found.

Before each input a journal in shared memory says what is run; where the process dies, whoever started it
reads there what it died of.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import mmap
import struct
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzing import guard
from fuzzing.harnesses import Harness
from fuzzing.lines import Lines

MOST_KEPT = 200  # findings of one worker
_HEAD = struct.Struct(
    "<QddI?"
)  # executions, clock and processor time at which the input was begun, its length, whether it runs
_SIZE = 1 << 18
_EVERY = 5.0  # seconds between notes of the lines


@dataclass(frozen=True)
class Found:
    """A finding; equal signatures are the same one."""

    harness: str
    kind: str
    signature: str
    trace: str
    data: str  # base64

    @property
    def content(self) -> bytes:
        """The input."""
        return base64.b64decode(self.data)


@dataclass(frozen=True)
class Running:
    """An input that is being run: for how many seconds, and the worker's processor time when it was begun."""

    seconds: float
    used: float
    data: bytes


class Journal:
    """What a worker does at the moment, in a file that is mapped by the worker and read by the driver."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        if fresh:
            path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    def begin(self, executions: int, data: bytes) -> None:
        """An input is about to be run."""
        shown = data[: _SIZE - _HEAD.size]
        self._memory[_HEAD.size : _HEAD.size + len(shown)] = shown
        self._memory[: _HEAD.size] = _HEAD.pack(
            executions, time.monotonic(), time.process_time(), len(shown), True
        )

    def end(self) -> None:
        """The input was run."""
        self._memory[_HEAD.size - 1] = 0

    @property
    def executions(self) -> int:
        """Inputs so far."""
        return int(_HEAD.unpack_from(self._memory)[0])

    def running(self) -> Running | None:
        """The input that is being run."""
        _, begun, used, length, runs = _HEAD.unpack_from(self._memory)
        if not runs:
            return None
        data = bytes(self._memory[_HEAD.size : _HEAD.size + length])
        return Running(time.monotonic() - begun, used, data)

    def close(self) -> None:
        """Let go of the file."""
        self._memory.close()


class Campaign:
    """Runs inputs of one harness."""

    def __init__(
        self, name: str, harness: Harness, home: Path | None = None, lines: Lines | None = None
    ) -> None:
        self.name = name
        self.harness = harness
        self.executions = 0
        self.found: dict[str, Found] = {}
        self._home = home
        self._lines = lines
        self._noted = time.monotonic()
        self._journal = Journal(home / "journal", fresh=True) if home is not None else None

    def execute(self, data: bytes) -> None:
        """Run an input; a finding is kept, and the work goes on."""
        self.executions += 1
        if self._journal is not None:
            self._journal.begin(self.executions, data)
        if self._lines is not None:
            self._lines.turn()
        try:
            guard.watched(self.harness.one, data, self.harness.SECONDS)
        except (Exception, guard.TookTooLong) as error:
            self._keep(error, data)
        finally:
            if self._journal is not None:
                self._journal.end()
        if time.monotonic() - self._noted > _EVERY:
            self.note_lines()

    def note_lines(self) -> None:
        """Write the lines down, from time to time: a crash takes all else along."""
        self._noted = time.monotonic()
        if self._home is not None and self._lines is not None:
            beside = self._home / "lines.new"
            beside.write_text(json.dumps(self._lines.plain()))
            beside.replace(self._home / "lines.json")

    def _keep(self, error: BaseException, data: bytes) -> None:
        found = described(self.name, error, data)
        if found.signature in self.found or len(self.found) >= MOST_KEPT:
            return
        self.found[found.signature] = found
        if self._home is not None:
            (self._home / f"finding-{len(self.found)}.json").write_text(json.dumps(asdict(found)))


def described(name: str, error: BaseException, data: bytes) -> Found:
    """A finding in words; its signature is where it was raised, not what it says."""
    kind = error.kind if isinstance(error, guard.FindingError) else type(error).__name__
    frames = [frame for one in _chain(error) for frame in traceback.extract_tb(one.__traceback__)]
    own = [frame for frame in frames if "/octavo/" in frame.filename] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].name}:{own[-1].lineno}" if own else "?"
    trace = "".join(traceback.format_exception(error))[-5000:]
    return Found(name, kind, f"{name} {kind} {where}", trace, base64.b64encode(data).decode())


def _chain(error: BaseException) -> list[BaseException]:
    """The error, after what it came from."""
    return [*(_chain(error.__cause__) if error.__cause__ is not None else []), error]


class Pool:
    """Inputs that reached new lines, in a folder that the workers of a harness share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()

    def add(self, data: bytes) -> None:
        """Give an input to the others."""
        name = _name(data)
        self._known.add(name)
        (self._folder / name).write_bytes(data)

    def news(self) -> list[bytes]:
        """What the others have given since the last question."""
        names = {path.name for path in self._folder.iterdir()} - self._known
        self._known |= names
        return [(self._folder / name).read_bytes() for name in sorted(names)]


@functools.lru_cache(maxsize=64)
def _name(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=10).hexdigest()
