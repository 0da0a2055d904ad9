"""A quick look at speed, for a result that nothing else was tried beside."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import OctavoError
from octavo.model.files import io
from octavo.model.runtime.samples import make, specs_of
from octavo.tuning.measure import speeds

SECONDS = 0.5


def quick_speed(model: str | Path, other: str | Path, threads: int | None = None) -> float | None:
    """Return how many times as fast the other is, on a made-up input; None where that can't be found out."""
    try:
        sample = make(specs_of(io.load(model)), 0, {})
        (found,) = speeds(Path(model), [Path(other)], [sample], threads=threads, seconds=SECONDS)
    except OctavoError:
        return None
    return found.value if found.is_known else None
