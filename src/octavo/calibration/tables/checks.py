"""What holds for every table, whatever its format."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from octavo.core.stats import Range
from octavo.errors import TableError

MOST_BYTES = 256 << 20
LARGEST = 3.4028234663852886e38  # float32


def checked(ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The same ranges, if each is one: finite, and from the smaller to the larger number."""
    for name, (low, high, std) in ranges.items():
        if not name:
            raise TableError("A table has a range for a tensor without a name; leave it out.")
        if not all(math.isfinite(v) for v in (low, high, std or 0.0)):
            raise TableError(f"The range of {name!r} is not finite ({low:g} … {high:g}); calibrate it again.")
        if max(abs(low), abs(high), abs(std or 0.0)) > LARGEST:
            raise TableError(f"The range of {name!r} is beyond the largest float32 ({low:g} … {high:g}).")
        if low > high:
            raise TableError(f"The range of {name!r} goes from {low:g} down to {high:g}; swap its ends.")
    return dict(ranges)


def magnitude(found: Range) -> float:
    """The largest magnitude in a range: what TensorRT makes a symmetric scale of."""
    return max(abs(found.low), abs(found.high))


def symmetric(name: str, written: str) -> Range:
    """The range of a magnitude written as text."""
    try:
        top = float(written)
    except ValueError:
        raise TableError(f"The value of {name!r} is {written[:40]!r}, which is no number.") from None
    if not math.isfinite(top) or top < 0.0:
        raise TableError(
            f"The value of {name!r} is {written[:40]!r}; a magnitude is finite and not negative."
        )
    return Range(-top, top)


def unique(pairs: Iterable[tuple[str, Range]]) -> dict[str, Range]:
    """A mapping from pairs, if no name comes twice."""
    found: dict[str, Range] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"The tensor {name!r} is in the table twice; keep one of the two.")
        found[name] = value
    return found
