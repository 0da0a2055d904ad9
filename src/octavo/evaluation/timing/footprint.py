"""The footprint of a model: bytes on disk, bytes in memory, seconds to load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.core import scratch
from octavo.core.files import read_json, write_text
from octavo.core.scratch_arrays import save_arrays
from octavo.evaluation.task import Feeds
from octavo.model.files import io
from octavo.model.graph import meta
from octavo.model.runtime.session import InputSpec

_MOST_BYTES = 1 << 20  # of the answer
TIMEOUT = 900.0  # seconds after which the process is given up


@dataclass(frozen=True)
class Footprint:
    """Memory and load time of a model in a process of its own; ``error`` where that failed."""

    memory_bytes: int | None = None
    load_seconds: float | None = None
    error: str | None = None


def file_bytes(path: Path) -> int:
    """Return the size of a model's file and of all files that hold its weights."""
    files = {Path(file).resolve() for file in meta.of(io.load(path)).files} | {path.resolve()}
    return sum(file.stat().st_size for file in files)


def footprint(model: Path, feed: Feeds, specs: Sequence[InputSpec], threads: int | None) -> Footprint:
    """Load and run a model in a fresh interpreter, and return what that took."""
    with scratch.folder() as name:
        folder = Path(name)
        save_arrays(folder / "feeds.npz", {spec.name: _storable(feed[spec.name]) for spec in specs})
        request = {"model": str(model), "threads": threads, "feeds": str(folder / "feeds.npz")}
        write_text(folder / "request.json", json.dumps(request))
        command = [
            sys.executable, "-m", "octavo.evaluation.timing.footprint_process",
            str(folder / "request.json"), str(folder / "answer.json"),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, timeout=TIMEOUT, check=False, text=True
            )
        except subprocess.TimeoutExpired:
            return Footprint(error=f"still running after {TIMEOUT:.0f} s")
        if not (folder / "answer.json").exists():
            lines = done.stderr.strip().splitlines()
            return Footprint(error=f"exit {done.returncode}: {lines[-1] if lines else 'no message'}")
        answer = read_json(folder / "answer.json", _MOST_BYTES)
    if "error" in answer:
        return Footprint(error=answer["error"])
    return Footprint(int(answer["memory_bytes"]), float(answer["load_seconds"]))


def _storable(array: Any) -> Any:
    """Return types that numpy's files do not have as bits."""
    return array.view(np.uint16) if array.dtype.kind == "V" else array
