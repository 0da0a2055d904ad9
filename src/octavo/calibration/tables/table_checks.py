"""Checks that hold for every table, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from octavo.core.stats import Range
from octavo.errors import TableError

MAX_BYTES = 256 << 20  # of a table
_MAX_FLOAT32 = 3.4028234663852886e38  # the largest number that a scale in float32 can come from


def checked(ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return the same ranges, if each is finite and goes from the smaller to the larger number."""
    for name, (low, high, std) in ranges.items():
        if not name:
            raise TableError("A table has a range for a tensor without a name; leave it out.")
        if not all(math.isfinite(v) for v in (low, high, std or 0.0)):
            raise TableError(f"The range of {name!r} is not finite ({low:g} … {high:g}); calibrate it again.")
        if max(abs(low), abs(high), abs(std or 0.0)) > _MAX_FLOAT32:
            raise TableError(f"The range of {name!r} is beyond the largest float32 ({low:g} … {high:g}).")
        if low > high:
            raise TableError(f"The range of {name!r} goes from {low:g} down to {high:g}; swap its ends.")
    return dict(ranges)


def magnitude(found: Range) -> float:
    """Return the largest magnitude in a range, from which TensorRT computes a symmetric scale."""
    return max(abs(found.low), abs(found.high))


def symmetric(name: str, written: str) -> Range:
    """Return the range of a magnitude that is written as text."""
    try:
        top = float(written)
    except ValueError:
        raise TableError(f"The value of {name!r} is {written[:40]!r}, which is not a number.") from None
    if not math.isfinite(top) or top < 0.0:
        raise TableError(
            f"The value of {name!r} is {written[:40]!r}; a magnitude is finite and not negative."
        )
    return Range(-top, top)


def unique(pairs: Iterable[tuple[str, Range]]) -> dict[str, Range]:
    """Return a mapping from pairs, if no name comes twice."""
    found: dict[str, Range] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"The tensor {name!r} is in the table twice; keep one of the two.")
        found[name] = value
    return found
