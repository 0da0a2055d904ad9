"""The loader: a mutated model is read, its weights looked at, its calls written out, and saved again."""

from __future__ import annotations

from random import Random

from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.errors import OctavoError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.reporting import inspection

SCOPE = (
    "model/files", "model/graph/normalize.py", "model/graph/inline.py", "model/graph/scopes.py",
    "model/graph/edit.py", "reporting/inspection.py",
)  # fmt: skip
SECONDS = 10.0


def seeds() -> list[bytes]:
    """Small valid models."""
    return list(made.models())


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Load; what was loaded can be written and loaded again, and is the same model."""
    try:
        loaded = io.load(data)
        for tensor in query.tensors(loaded):
            tensor.numpy()
        inspection.inspect(loaded)
        mark = io.fingerprint(loaded)
        again = io.load(io.to_bytes(loaded))
    except OctavoError:
        return
    if io.fingerprint(again) != mark:
        raise guard.FindingError("round trip", "a saved model has another fingerprint")
    try:
        normalize(loaded)
        io.to_bytes(loaded)
    except OctavoError:
        return
