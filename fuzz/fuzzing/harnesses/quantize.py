"""End to end: a mutated model is quantized, with two samples and without, and what comes out is looked at.

Here the runtime runs what it is given. A crash inside of it is recorded apart from the findings.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import onnx

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.core.effort import best_path
from octavo.data.readers.random_samples import random_data
from octavo.errors import OctavoError
from octavo.model.prepare import PrepareOptions

SCOPE = (
    "pipeline", "api.py", "planning", "emission", "model/prepare", "model/graph/query.py",
    "model/graph/edit.py", "model/runtime/session.py", "model/runtime/session_inputs.py",
    "calibration/observe",
)  # fmt: skip
SECONDS = 30.0

_WAYS: tuple[dict[str, Any], ...] = (
    {"data": 2, "effort": "plain"}, {"data": 1, "effort": "plain"}, {"data": 2, "style": "qoperator"}, {}, {},
    {"data": 2, "recipe": "W8A16"}, {"data": 1, "recipe": "W4A16"}, {"data": 2, "recipe": "FP8"},
    {"data": 2, "target": "portable", "effort": "plain"}, {"data": 1, "target": "qnn"},
    {"data": 1, "target": "tensorrt"}, {"data": 2, "external_data": True, "effort": "plain"},
    {"data": 4, "effort": "standard", "time_limit": 5},
)  # fmt: skip


def seeds() -> list[bytes]:
    """Small valid models."""
    return list(made.models())


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Quantize in one of the ways; the output is there whole, or not at all."""
    way = dict(_WAYS[crc32(data) % len(_WAYS)])
    home = guard.folder()
    source, out = home / "given.onnx", home / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    source.write_bytes(data)
    samples = random_data(way.pop("data")) if "data" in way else None
    try:
        octavo.quantize(
            source, samples, output=out / "made.onnx", threads=1, engine="serial",
            prepare=PrepareOptions(symbolic_shapes=False), **way,
        )  # fmt: skip
    except OctavoError:
        _check_empty(home, out)
        return
    if source.read_bytes() != data:
        raise guard.FindingError("write", "the input was changed")
    written = out / "made.onnx"
    if not written.exists():  # the result misses what is required of it
        written = best_path(written)
    _check_same_ends(onnx.load(source, load_external_data=False), onnx.load(written))


def _check_empty(home: Path, out: Path) -> None:
    """After an error nothing is left, neither in the output's folder nor beside it."""
    left = [path.name for path in (*out.iterdir(), *home.glob("octavo-*"))]
    if left:
        raise guard.FindingError("write", f"after an error there is still {left[:5]}")


def _check_same_ends(given: onnx.ModelProto, result: onnx.ModelProto) -> None:
    """The result is called like the original."""
    weights = {one.name for one in given.graph.initializer}
    inputs = [one.name for one in given.graph.input if one.name not in weights]
    found = {one.name for one in result.graph.input}
    if not set(inputs) <= found:
        raise guard.FindingError("interface", f"inputs {inputs} became {sorted(found)}")
    if [one.name for one in given.graph.output] != [one.name for one in result.graph.output]:
        raise guard.FindingError("interface", "the outputs have other names")
