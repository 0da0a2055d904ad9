"""Lint: a mutated quantized model is looked through for one of the targets, and mended.

As in ``quantize``, the runtime opens what it is given.
"""

from __future__ import annotations

import functools
import json
from random import Random
from zlib import crc32

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.data.readers.random_samples import random_data
from octavo.errors import OctavoError
from octavo.linting import lint
from octavo.model.files import io
from octavo.targets import TARGETS

SCOPE = ("linting",)
SECONDS = 30.0


@functools.cache
def seeds() -> list[bytes]:
    """Small models as Octavo quantizes them: in both styles, and without data."""
    found = []
    for given in made.models():
        for way in ({"style": "qdq"}, {"style": "qoperator"}, {}):
            data = random_data(2) if way else None
            try:
                result = octavo.quantize(given, data, threads=1, engine="serial", **way)
            except OctavoError:
                continue
            found.append(io.to_bytes(result.model))
    return found


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Lint and mend; what is mended has nothing left to mend, and can be written and read."""
    names = sorted(TARGETS)
    target = names[crc32(data) % len(names)]
    try:
        found = lint(data, target=target, fix=True)
        text = io.to_bytes(found.model)
    except OctavoError:
        return
    for finding in found.findings:
        json.dumps(finding.to_dict())
    if not len(found.model.graph):
        return
    try:
        again = lint(text, target=target, fix=True)
    except OctavoError as error:
        raise guard.FindingError("mended", f"what was mended can't be read: {error}") from error
    if again.fixed:
        raise guard.FindingError("mended", f"{again.fixed[0].rule} is mended a second time")
