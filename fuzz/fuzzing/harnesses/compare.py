"""Comparison and evaluation: a mutated model beside the good one that it was made from, on either side."""

from __future__ import annotations

import sys
from random import Random
from zlib import crc32

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.comparison.comparing import compare
from octavo.data.readers.random_samples import random_data
from octavo.errors import OctavoError
from octavo.evaluation import evaluate
from octavo.model.files import io

SCOPE = ("comparison", "evaluation/tasks/agreement.py", "evaluation/evaluator.py")
SECONDS = 30.0
sys.modules["sympy"] = None  # type: ignore[assignment]  # symbolic inference would start a process for each input


def seeds() -> list[bytes]:
    """Small valid models, and the same quantized."""
    found = list(made.models())
    for data in found[:3]:
        try:
            result = octavo.quantize(data, random_data(2), effort="plain", threads=1)
        except OctavoError:
            continue
        found.append(io.to_bytes(result.model))
    return found


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Compare with a good model, as float and as quantized."""
    home = guard.folder()
    source, good = home / "given.onnx", home / "good.onnx"
    source.write_bytes(data)
    good.write_bytes(made.models()[0])
    way = crc32(data) % 4
    samples = random_data(2)
    try:
        if way == 0:
            compare(source, good, samples, threads=1)
        elif way == 1:
            compare(good, source, samples, threads=1)
        elif way == 2:
            evaluate(source, samples, "agreement", against=good, threads=1)
        else:
            evaluate(good, samples, "agreement", against=source, threads=1)
    except OctavoError:
        return
