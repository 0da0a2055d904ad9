"""Intervals are joined in the same way, whether they are few or many."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.calibration.statistics.state_parts import SampleSet


@pytest.mark.parametrize("count", [2, 5, 16, 17, 60])
def test_intervals_are_those_of_the_set(count: int) -> None:
    rng = np.random.default_rng(count)
    starts = rng.integers(0, 4 * count, count)
    intervals = np.stack([starts, starts + rng.integers(1, 6, count)], axis=1)
    members = sorted({i for start, stop in intervals.tolist() for i in range(start, stop)})
    found = SampleSet(intervals)
    assert [i for start, stop in found.intervals.tolist() for i in range(start, stop)] == members
    assert np.all(found.intervals[1:, 0] > found.intervals[:-1, 1])
    assert SampleSet([(member, member + 1) for member in members]).to_bytes() == found.to_bytes()
