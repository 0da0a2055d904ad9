"""A process that loads and runs one model, so that memory and load time are the model's alone.

``python -m octavo.evaluation.timing.footprint_process REQUEST ANSWER`` takes two JSON files.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from octavo.core.scratch_arrays import load_arrays
from octavo.errors import OctavoError
from octavo.model.runtime.session import InputSpec, Session, runtime_ir_limit

LOADS = 3  # of which the median counts
RUNS = 2  # the second one shows what the first allocated lazily


def memory(key: str) -> int:
    """Return a field of ``/proc/self/status`` in bytes; elsewhere the process's peak memory."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ImportError):
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return 0


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return the peak memory above what the process had before, and the median time to load."""
    model, threads = Path(request["model"]), request["threads"]
    runtime_ir_limit()  # loads the runtime itself
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = memory("VmRSS")
    started = time.perf_counter()
    session = Session.open(model, threads=threads, trusted=True)  # by the process that asks
    loads = [time.perf_counter() - started]
    feeds = _feeds(Path(request["feeds"]), session.inputs)
    for _ in range(RUNS):
        session.run(feeds)
    peak = memory("VmHWM")
    del session
    for _ in range(LOADS - 1):
        started = time.perf_counter()
        Session.open(model, threads=threads, trusted=True)
        loads.append(time.perf_counter() - started)
    return {"memory_bytes": max(0, peak - before), "load_seconds": statistics.median(loads)}


def _feeds(path: Path, specs: Sequence[InputSpec]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by input, in the types of the inputs."""
    arrays = load_arrays(path)
    return {spec.name: _typed(arrays[spec.name], spec) for spec in specs}


def _typed(array: npt.NDArray[Any], spec: InputSpec) -> npt.NDArray[Any]:
    if array.dtype == spec.dtype:
        return array
    return array.astype(spec.dtype) if spec.dtype.kind == "O" else array.view(spec.dtype)


def main(arguments: Sequence[str]) -> int:
    """Read the request and write the answer."""
    request, answer = (Path(argument) for argument in arguments)
    try:
        found = measured(json.loads(request.read_text(encoding="utf-8")))
    except OctavoError as error:
        found = {"error": str(error)}
    answer.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
