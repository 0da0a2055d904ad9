"""The automatic choice: a mutated model goes through the efforts that try several ways and time them.

Here the runtime runs what it is given. A crash inside of it is recorded apart from the findings.
"""

from __future__ import annotations

import shutil
from random import Random
from zlib import crc32

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.data.readers.random_samples import random_data
from octavo.errors import OctavoError
from octavo.model.prepare import PrepareOptions

SCOPE = ("tuning", "evaluation/timing", "core/intervals.py")
SECONDS = 30.0


def seeds() -> list[bytes]:
    """Small valid models."""
    return list(made.models())


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Choose among ways within two seconds; the output is there whole, or not at all."""
    home = guard.folder()
    source, out = home / "given.onnx", home / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    source.write_bytes(data)
    effort = ("standard", "search")[crc32(data) % 2]
    try:
        octavo.quantize(
            source, random_data(4), output=out / "made.onnx", effort=effort, time_limit=2, threads=1,
            engine="serial", prepare=PrepareOptions(symbolic_shapes=False),
        )  # fmt: skip
    except OctavoError:
        left = [path.name for path in out.iterdir()]
        if left:
            raise guard.FindingError("write", f"after an error there is still {left[:5]}") from None
    if source.read_bytes() != data:
        raise guard.FindingError("write", "the input was changed")
