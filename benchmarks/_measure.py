"""What the benchmarks share: tasks in processes of their own, clocks, memory, and tables.

A *task* is a top-level function ``(payload) -> figures`` of a benchmark module. `run_task` runs it
in a fresh interpreter (`_worker.py`), so that seconds and memory are the task's own, and a crash or
a hang is an answer like any other.

Seconds are taken inside the child by a `Meter`, which starts after the imports. CPU seconds count
every thread and every finished child process. The making of calibration samples is not billed: a
`Feeds` keeps account of it, and the meter subtracts it. Peak RSS is the kernel's high-water mark,
reset when the meter starts. Anonymous memory (`RssAnon`, what neither a file nor shared memory
backs) has no such mark, so the parent samples it for the whole tree of processes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import pkgutil
import platform
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
MIB = 1024 * 1024

Feed = dict[str, np.ndarray]
Figures = dict[str, Any]


class TaskError(Exception):
    """A task's own short account of what went wrong, shown as it is."""


# ---------------------------------------------------------------------------------- in the child


class Feeds:
    """Calibration samples that can be read again; the time to make them is kept apart."""

    def __init__(self, make: Callable[[], Iterable[Feed]]) -> None:
        self._make = make
        self.wall = 0.0
        self.cpu = 0.0
        self.marks: list[tuple[float, str]] = []

    def __iter__(self) -> Iterator[Feed]:
        source: Iterator[Feed] | None = None
        count = 0
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            self.marks.append((time.monotonic(), f"sample {count}"))
            try:
                source = iter(self._make()) if source is None else source
                feed = next(source)
            except StopIteration:
                self.marks.append((time.monotonic(), "end of data"))
                return
            finally:
                self.wall += time.perf_counter() - wall
                self.cpu += time.thread_time() - cpu
            count += 1
            yield feed


class Meter:
    """Wall seconds, CPU seconds and peak RSS of a ``with`` block, less what `feeds` took."""

    def __init__(self, feeds: Feeds | None = None) -> None:
        self._feeds = feeds
        self._marks: list[tuple[float, str]] = []
        self.figures: Figures = {}

    def __enter__(self) -> Meter:
        # Where the kernel refuses the reset, the mark counts the imports too; those are smaller.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._rss_before = process_memory("VmRSS")
        self._marks.append((time.monotonic(), "start"))
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall, cpu = time.perf_counter() - self._wall, cpu_seconds() - self._cpu
        self._marks.append((time.monotonic(), "end"))
        if self._feeds is not None:
            wall, cpu = wall - self._feeds.wall, cpu - self._feeds.cpu
            self._marks = sorted(self._marks + self._feeds.marks)
        self.figures = {
            "wall_s": wall,
            "cpu_s": cpu,
            "peak_rss_mib": process_memory("VmHWM") / MIB,
            "rss_before_mib": self._rss_before / MIB,
            "marks": self._marks,
        }


def cpu_seconds() -> float:
    """CPU time of this process, all its threads, and its finished children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def process_memory(key: str, pid: int | str = "self") -> int:
    """A memory field of ``/proc/PID/status`` in bytes; 0 where it is not to be had."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def import_whole(package: str) -> None:
    """Import a package with its submodules, so that late imports do not fall into the measurement."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, package + ".", onerror=lambda _: None):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module.name)


def import_octavo() -> Any:
    """Octavo (from this checkout where there is one) and what it stands on, fully imported."""
    if (SOURCE / "octavo").is_dir():
        sys.path.insert(0, str(SOURCE))
    for name in ("onnx", "onnxruntime", "onnx_ir"):
        importlib.import_module(name)
    import_whole("octavo")
    return importlib.import_module("octavo")


def open_session(path: str | Path, threads: int = 1, config: Mapping[str, str] | None = None) -> Any:
    """An ONNX Runtime CPU session with everything else left at its defaults, but for entries of `config`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def stock_reader(feeds: Iterable[Feed]) -> Any:
    """`feeds` as the data reader that ``onnxruntime.quantization`` asks for."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._source = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._source, None)

    return Reader()


# --------------------------------------------------------------------------------- in the parent


@dataclass(frozen=True)
class Outcome:
    """What came of a task: its figures, or an error in a few words."""

    figures: Figures
    error: str | None = None
    anonymous: list[tuple[float, int]] = field(default_factory=list)  # (monotonic seconds, bytes)

    @property
    def peak_anonymous(self) -> int:
        return max((size for _, size in self.anonymous), default=0)

    def phases(self) -> dict[str, int]:
        """Peak anonymous bytes from each mark of the meter to the next."""
        marks = [(float(when), str(name)) for when, name in self.figures.get("marks", [])]
        peaks: dict[str, int] = {}
        ends = [when for when, _ in marks[1:]] + [math.inf]
        for (start, name), end in zip(marks, ends, strict=True):
            inside = [size for when, size in self.anonymous if start <= when < end]
            peaks[name] = max(peaks.get(name, 0), max(inside, default=0))
        return peaks


def run_task(
    function: Callable[[Figures], Figures],
    payload: Figures,
    *,
    timeout: float = 3600,
    folder: Path | None = None,
    sample_every: float = 0.0,
    python: str = sys.executable,
) -> Outcome:
    """Run `function` (a top-level function of a module in this folder) in a fresh interpreter.

    `folder` is its working folder (a scratch one by default: some libraries leave files behind), `python` the
    interpreter where it is not this one.
    With `sample_every` the anonymous memory of its processes is read at that interval, in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as scratch_name:
        scratch = Path(scratch_name)
        (scratch / "payload.json").write_text(json.dumps(payload))
        command = [
            python, str(HERE / "_worker.py"), str(module_file(function)), function.__name__,
            str(scratch / "payload.json"), str(scratch / "answer.json"),
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with (scratch / "log.txt").open("wb") as log:
            child = subprocess.Popen(
                command,
                cwd=folder or scratch,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                samples, late = watch(child, timeout, sample_every)
            finally:
                stop(child)
        if late:
            return Outcome({}, f"still running after {timeout:.0f} s", samples)
        if not (scratch / "answer.json").exists():
            return Outcome({}, crash_text(child.returncode, scratch / "log.txt"), samples)
        answer = json.loads((scratch / "answer.json").read_text())
        return Outcome(answer.get("figures", {}), answer.get("error"), samples)


def module_file(function: Callable[..., object]) -> Path:
    return Path(function.__code__.co_filename).resolve()


def watch(
    child: subprocess.Popen[bytes], timeout: float, every: float
) -> tuple[list[tuple[float, int]], bool]:
    """Wait for `child`, sampling its anonymous memory; the samples, and whether time ran out."""
    samples: list[tuple[float, int]] = []
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            child.wait(every if every > 0 else max(0.01, deadline - time.monotonic()))
            return samples, False
        except subprocess.TimeoutExpired:
            if every > 0:
                samples.append(
                    (time.monotonic(), sum(process_memory("RssAnon", pid) for pid in tree(child.pid)))
                )
    return samples, True


def tree(pid: int) -> list[int]:
    """`pid` and all its descendants."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(int(word) for word in task.read_text().split())
    return found


def stop(child: subprocess.Popen[bytes]) -> None:
    """End `child` and whatever it has started, if anything is left of them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def crash_text(code: int, log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    cause = signal.Signals(-code).name if code < 0 else f"exit {code}"
    return shorten(f"crashed ({cause}) {lines[-1] if lines else ''}")


def leave_on_termination() -> None:
    """Turn SIGTERM into an ordinary exit, so that temporary folders and children are cleaned up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def quantized_nodes(path: Path) -> int:
    """How many nodes of a model, subgraphs included, quantize, dequantize or compute on integers."""
    import onnx

    def count(graph: Any) -> int:
        total = sum(bool(QUANTIZED_OPS.search(node.op_type)) for node in graph.node)
        for node in graph.node:
            for attribute in node.attribute:
                inner = [attribute.g, *attribute.graphs] if attribute.type in (5, 10) else []
                total += sum(map(count, inner))
        return total

    return count(onnx.load(path, load_external_data=False).graph)


QUANTIZED_OPS = re.compile(
    r"QuantizeLinear$|^QLinear|^QGemm|^DynamicQuantize|Integer|MatMulNBits|^QAttention"
)


# ------------------------------------------------------------------------------------- reporting


# What the runtime puts before the part of a message that says something.
PREAMBLE = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from \S+ failed: ?|This is an invalid model\. ?"
)


def shorten(text: str, width: int = 130) -> str:
    """The first line that says something, without the runtime's preamble and without folders."""
    line = next((line.strip() for line in str(text).splitlines() if line.strip()), "")
    line = re.sub(r"(?<![\w.])/\S+/", "", PREAMBLE.sub("", line)).rstrip(": ")
    # A long message names the culprit at its beginning and the reason at its end.
    return line if len(line) <= width else f"{line[: width * 2 // 5]} … {line[-width * 3 // 5 :]}"


def failure(what: str, error: BaseException) -> TaskError:
    """``what: the error in a few words``; the kind of error too, unless the runtime's own."""
    kind = type(error).__name__
    named = shorten(str(error)) if "onnxruntime" in type(error).__module__ else shorten(f"{kind}: {error}")
    return TaskError(f"{what}: {named}")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> str:
    """A markdown table with aligned columns: the first and those named in `words` left, figures right."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(3, *(len(row[column]) for row in [header, *cells])) for column in range(len(header))]
    left = [column == 0 or title in words for column, title in enumerate(header)]
    rule = [
        "-" * width if to_left else "-" * (width - 1) + ":"
        for width, to_left in zip(widths, left, strict=True)
    ]

    def line(row: Sequence[str]) -> str:
        parts = zip(row, widths, left, strict=True)
        return "| " + " | ".join(c.ljust(w) if to_left else c.rjust(w) for c, w, to_left in parts) + " |"

    return "\n".join([line(header), line(rule), *map(line, cells)])


@dataclass(frozen=True)
class Verdict:
    """One claim, whether it holds (None: not measured), and the figures that say so."""

    claim: str
    holds: bool | None
    evidence: str

    def __str__(self) -> str:
        word = {True: "PASS", False: "FAIL", None: "n/a "}[self.holds]
        return f"- {word}  {self.claim}: {self.evidence}"


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    print("\nVerdict\n")
    print("\n".join(map(str, verdicts)))


def number(value: float | None, form: str = ".1f", unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def sqnr_db(wanted: np.ndarray, got: np.ndarray) -> float:
    """Signal to quantization noise: 10 log10(Σ x² / Σ (x − y)²)."""
    signal_power = float(np.square(wanted, dtype=np.float64).sum())
    noise_power = float(np.square(wanted.astype(np.float64) - got).sum())
    return 10 * math.log10(signal_power / max(noise_power, 1e-20 * signal_power, 1e-300))


def machine() -> Figures:
    """What the figures depend on besides the code."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("onnxruntime", "onnx", "numpy", "octavo"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    cpu = names[0].split(":", 1)[1].strip() if names else platform.processor()
    return {"cpu": cpu, "cores": os.cpu_count(), "python": platform.python_version(), **versions}


def write_json(path: Path | None, content: object) -> None:
    """Write beside, then rename: an interrupted run never leaves half a file."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(content, indent=1))
    beside.replace(path)
