"""A quick look at speed, for a result that nothing else was tried beside."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from octavo.errors import OctavoError
from octavo.evaluation.latency import on_first_core, taking_turns
from octavo.model import io
from octavo.model.samples import make, specs_of
from octavo.model.session import Session

ROUNDS, SECONDS = 5, 1.0


def quick_speed(model: str | Path, other: str | Path, threads: int | None = None) -> float | None:
    """How many times as fast the other is, on a made-up input; None where that can't be found out."""
    try:
        sample = make(specs_of(io.load(model)), 0, {})
        config = taking_turns(threads)
        sessions = [Session.open(path, threads=threads, config=config) for path in (model, other)]
        for session in sessions:
            session.run(sample)
        ratios: list[float] = []
        end = time.monotonic() + SECONDS
        with on_first_core(threads):
            while len(ratios) < ROUNDS or time.monotonic() < end:
                taken = [_timed(session, sample) for session in sessions]
                ratios.append(taken[0] / max(taken[1], 1e-12))
    except OctavoError:
        return None
    return float(np.median(ratios))


def _timed(session: Session, sample: dict[str, np.ndarray]) -> float:
    start = time.perf_counter()
    session.run(sample)
    return time.perf_counter() - start
