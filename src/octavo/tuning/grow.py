"""More and more layers in float, the weakest first, until a trial is close to float.

What each layer loses by itself is known. If all of it reached the outputs alike, leaving the layers ``1 … k``
in float would take away the share ``s_k`` of the noise::

    s_k = Σ_(i ≤ k) noise_i / Σ noise_i

The first trial is that for which this share would do. Where it takes away less, the layers behind it are
expected to lose no larger part at the outputs: a search that can't get there with all of them ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo.evaluation.task import F64
from octavo.tuning.candidates import Candidate, without_layers
from octavo.tuning.requirements import FAITHFUL_DB, Requirements
from octavo.tuning.sensitivity import Layer
from octavo.tuning.trial import Trial

LUCK = 0.07  # of the noise, a third of a decibel: by as much two roundings of one model differ


@dataclass(frozen=True)
class Growth:
    """Candidates with more layers in float than a start."""

    start: Trial
    layers: Sequence[Layer]  # the weakest first
    requirements: Requirements

    def candidate(self, count: int) -> Candidate:
        """Return the start with so many layers in float."""
        return without_layers(self.start.candidate, [layer.node for layer in self.layers[:count]])

    @property
    def first(self) -> int:
        """Return how many layers hold what is too much of the noise; one where all hold too little."""
        enough = np.flatnonzero(self._shares >= self._excess)
        return int(enough[0]) + 1 if len(enough) and enough[0] + 1 < len(self.layers) else 1

    def may_get_there(self, tried: Trial, count: int) -> bool:
        """Whether more layers may do, after what so many of them took away."""
        before, after = self.start.sqnr_db, tried.sqnr_db
        if before is None or after is None or not len(self._shares):
            return True
        taken = 1 - 10 ** ((before - after) / 10) + LUCK
        return bool(taken / max(self._shares[count - 1], 1e-9) >= self._excess)

    @property
    def _excess(self) -> float:
        """Return the share of the start's noise that has to go."""
        least = self.requirements.min_sqnr if self.requirements.min_sqnr is not None else FAITHFUL_DB
        decibels = self.start.sqnr_db
        return 0.0 if decibels is None else float(1 - 10 ** ((decibels - least) / 10))

    @property
    def _shares(self) -> F64:
        noise = 10 ** (-np.array([layer.sqnr_db for layer in self.layers], np.float64) / 10)
        shares: F64 = np.cumsum(noise) / max(float(noise.sum()), 1e-300)
        return shares
