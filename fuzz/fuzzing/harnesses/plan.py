"""Plans as JSON: read, shown, and carried out on the model that the seed was made for."""

from __future__ import annotations

import functools
import json
from random import Random
from zlib import crc32

import numpy as np

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import tree
from octavo.core.plan import Plan
from octavo.errors import OctavoError

SCOPE = ("core/plan.py", "core/codec.py", "core/scheme.py", "core/granularity.py", "core/qtypes.py")
SECONDS = 10.0
_CARRIED_OUT = 16  # one plan of so many

_WORDS = ("x", "w", "h", "y", "m", "a", "Measured", "Bounded", "Shared", "Derived", "Fixed",
          "Constant", "Dynamic", "kind", "key", "scheme", "qtype", "uint8", "int8", "int4",
          "uint16", "int32", "float8e4m3fn", "channel", "channel:7", "block:32", "block:0",
          "tensor", "minmax", "entropy", "percentile", "qdq", "qoperator", "integer",
          "octavo_plan", "nodes", "entries", "range", "low", "high", "scale", "zero_point")  # fmt: skip


@functools.cache
def seeds() -> list[bytes]:
    """Plans of the small dense model, in each style."""
    model = made.models()[0]
    found = [octavo.plan(model, style=style) for style in ("qdq", "qoperator")]
    found += [octavo.plan(model, name) for name in ("W8A8", "W8A16", "W4A16", "FP8")]
    found += [octavo.plan(model, static=False)]
    return [json.dumps(plan.to_dict()).encode() for plan in found]


def mutate(data: bytes, chance: Random) -> bytes:
    """A changed tree."""
    return tree.mutate_json(data, chance, _WORDS)


def one(data: bytes) -> None:
    """Read; what was read is written and read again as the same plan."""
    path = guard.folder() / "plan.json"
    path.write_bytes(data)
    try:
        plan = Plan.load(path)
        plan.needs()
        str(plan)
        plan.save(path)
    except OctavoError:
        return
    try:
        again = Plan.load(path)
    except OctavoError as error:
        raise guard.FindingError("round trip", f"a saved plan is refused: {error}") from error
    if again.to_dict() != plan.to_dict():
        raise guard.FindingError("round trip", "a saved plan is read as another one")
    if crc32(data) % _CARRIED_OUT == 0:
        _carry_out(plan)


def _carry_out(plan: Plan) -> None:
    """With the numbers of a calibration, as ``octavo quantize --plan`` does it."""
    data = [{"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)}]
    try:
        octavo.quantize(made.models()[0], data, plan=plan, threads=1, engine="serial")
    except OctavoError:
        return
