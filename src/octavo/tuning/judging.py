"""Fidelity and speed of trials beside the float model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.evaluation.latency import Ratio, interleaved, ratio
from octavo.model.session import Session

Feed = Mapping[str, npt.NDArray[Any]]


class Reference:
    """What the float model answers on the samples that were held back."""

    def __init__(self, session: Session, samples: Sequence[Feed]) -> None:
        self.session = session
        self.samples = samples
        self.answers = [session.run(sample) for sample in samples]

    def fidelity(self, session: Session) -> tuple[float, float | None]:
        """dB at the outputs, and the share of samples with the same best class where outputs are scores."""
        signal = noise = 0.0
        same = rows = 0
        for sample, expected in zip(self.samples, self.answers, strict=True):
            found = session.run(sample)
            for name, want in expected.items():
                if want.dtype.kind != "f":
                    continue
                x, y = want.astype(np.float64), found[name].astype(np.float64)
                signal += float(np.sum(x * x))
                noise += float(np.sum((x - y) ** 2))
                if x.ndim == 2 and x.shape[1] > 1:
                    same += int(np.count_nonzero(x.argmax(1) == y.argmax(1)))
                    rows += len(x)
        if math.isnan(noise):
            return -math.inf, None
        decibels = math.inf if noise == 0 else 10 * math.log10(max(signal, 1e-300) / noise)
        return decibels, same / rows if rows else None


def speeds(
    reference: Session, models: Sequence[Path], sample: Feed, *, threads: int | None, seconds: float
) -> list[Ratio]:
    """How many times as fast as float each model is; all take turns."""
    sessions = [reference, *(Session.open(path, threads=threads) for path in models)]
    calls = [lambda session=session: session.run(sample) for session in sessions]
    taken = interleaved(calls, seconds=seconds)
    return [ratio(taken[0], row) for row in taken[1:]]
