"""Quantize small models by the hundred in one process, and see whether anything grows.

``python scripts/soak.py [--runs 500] [--kills 0]``: memory, open descriptors, threads and temporary files
every tenth of the way; exits with 1 where one of them grows. With ``--kills`` as many runs are then killed at
random moments, and what they leave is looked at.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.core import files

MOST_GROWTH = 24 << 20  # bytes that memory may differ by after the warm-up: heaps breathe
_WAYS: tuple[dict[str, object], ...] = (
    {},
    {"style": "qoperator"},
    {"external_data": True},
    {"recipe": "W8A16"},
    {"recipe": "W4A16"},
    {"exclude": ("op:Relu",)},
)


@dataclass(frozen=True)
class Mark:
    """What the process held after so many runs."""

    runs: int
    memory: int
    descriptors: int
    threads: int
    temporary: int
    seconds: float


def model_of(number: int) -> onnx.ModelProto:
    """A small model; two that are alike are far apart."""
    rng = np.random.default_rng(number)
    width = (16, 32, 48, 64)[number % 4]
    return _convolutions(rng, width) if number % 3 == 0 else _layers(rng, width, 1 + number % 4)


def _layers(rng: np.random.Generator, width: int, depth: int) -> onnx.ModelProto:
    nodes, weights, name = [], [], "x"
    for level in range(depth):
        weights.append(_weight(rng, f"w{level}", (width, width)))
        nodes.append(helper.make_node("MatMul", [name, f"w{level}"], [f"m{level}"], f"product{level}"))
        nodes.append(helper.make_node("Relu", [f"m{level}"], [f"r{level}"], f"relu{level}"))
        name = f"r{level}"
    return _model(nodes, weights, ["n", width], name)


def _convolutions(rng: np.random.Generator, width: int) -> onnx.ModelProto:
    weights = [_weight(rng, "a", (width // 2, 3, 3, 3)), _weight(rng, "b", (8, width // 2, 1, 1))]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "b"], ["y"], "second"),
    ]
    return _model(nodes, weights, ["n", 3, 8, 8], "y")


def _weight(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def _model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: list[int | str], output: str
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "soak",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        weights,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def samples(model: onnx.ModelProto, number: int) -> list[dict[str, np.ndarray]]:
    """Data for a model."""
    dims = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(number)
    return [{"x": rng.standard_normal(dims).astype(np.float32)} for _ in range(3)]


def quantize(number: int, folder: Path) -> None:
    """One run: each in another way, every seventh without data, every ninth with data that does not fit."""
    model, way = model_of(number), _WAYS[number % len(_WAYS)]
    data: list[dict[str, np.ndarray]] | None = samples(model, number)
    if number % 7 == 0:
        data, way = None, {}
    elif number % 9 == 0:
        data = [{"wrong": np.zeros(1, np.float32)}]
    source: str | onnx.ModelProto = model
    if number % 2:
        source = str(folder / "model.onnx")
        Path(source).write_bytes(model.SerializeToString())
    with contextlib.suppress(octavo.DataError, octavo.ModelError, octavo.RecipeError):
        octavo.quantize(source, data, output=folder / f"out{number % 5}.onnx", threads=1, **way)  # type: ignore[arg-type]


def soak(runs: int, marks: int = 10, say: Callable[[Mark], None] = lambda mark: None) -> list[Mark]:
    """Quantize so often; returns what the process held along the way, the first mark after the warm-up."""
    found = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        own = Path(name, "temporary")
        own.mkdir()
        kept, tempfile.tempdir = tempfile.tempdir, str(own)
        try:
            for number in range(runs):
                quantize(number, Path(name))
                if (number + 1) % max(1, runs // marks) == 0:
                    found.append(_mark(number + 1, Path(name), own, time.monotonic() - began))
                    say(found[-1])
        finally:
            tempfile.tempdir = kept
    return found


def _mark(runs: int, folder: Path, temporary: Path, seconds: float) -> Mark:
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    left = [*temporary.rglob("*"), *folder.glob(".octavo-*")]
    return Mark(
        runs,
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        len(left),
        seconds,
    )


def growth(marks: Sequence[Mark]) -> list[str]:
    """What grew after the warm-up, in words."""
    first, last = marks[len(marks) // 5], marks[-1]
    found = []
    if last.memory - first.memory > MOST_GROWTH:
        found.append(f"memory grew by {(last.memory - first.memory) / 2**20:.1f} MiB")
    for name in ("descriptors", "threads", "temporary"):
        if getattr(last, name) > getattr(first, name):
            found.append(f"{name} grew from {getattr(first, name)} to {getattr(last, name)}")
    return found


def kills(count: int) -> tuple[int, int]:
    """Kill so many runs at random moments; returns how many were in mid-work, and how many left a mixture."""
    rng, killed, mixed = random.Random(0), 0, 0
    span = 0.05
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        for number in range(count):
            folder = Path(name, str(number))
            folder.mkdir()
            began = time.monotonic()
            _write(1, folder)
            span = max(span, time.monotonic() - began)
            old = _content(folder)
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    _write(5, folder)
                os._exit(0)
            time.sleep(rng.random() * span)
            os.kill(child, signal.SIGKILL)
            killed += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
            files.sweep(folder)
            found = _content(folder)
            mixed += not (
                found == old or (found.keys() == old.keys() and all(found[k] != old[k] for k in old))
            )
    return killed, mixed


def _write(number: int, folder: Path) -> None:
    model = model_of(number)
    octavo.quantize(model, samples(model, number), output=folder / "m.onnx", external_data=True, threads=1)


def _content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print(mark: Mark) -> None:
    _say(
        f"{mark.runs:>6} {mark.memory / 2**20:>12.1f} {mark.descriptors:>12} {mark.threads:>8} "
        f"{mark.temporary:>10} {mark.seconds:>8.1f}"
    )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500, help="how many quantizations (default: 500)")
    parser.add_argument(
        "--kills", type=int, default=0, help="how many runs to kill afterwards (default: none)"
    )
    options = parser.parse_args()
    _say(
        f"{'runs':>6} {'memory, MiB':>12} {'descriptors':>12} {'threads':>8} {'temporary':>10} {'seconds':>8}"
    )
    grown = growth(soak(options.runs, say=_print))
    _say("; ".join(grown) if grown else "nothing grew after the warm-up")
    mixed = 0
    if options.kills:
        killed, mixed = kills(options.kills)
        _say(
            f"{killed} of {options.kills} runs were killed in mid-work; {mixed} left a mixture of old and new"
        )
    return 1 if grown or mixed else 0


if __name__ == "__main__":
    sys.exit(main())
