"""Sums over samples give what the whole arrays give."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.comparison.distances import SLAB, Clipping, Gap, Power, between, row


def test_distances_are_those_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal(n) for n in (1, 70_000, 5, SLAB, 0)]
    noisy = [p + 0.01 * rng.standard_normal(p.size) for p in parts]
    power, gap = Power(), Gap()
    for p, n in zip(parts, noisy, strict=True):
        power.add(row(p))
        gap.add(row(p), row(n))
    x, y = np.concatenate(parts), np.concatenate(noisy)
    errors = gap.errors(power)
    assert errors is not None
    want = 20 * np.log10(np.linalg.norm(x) / np.linalg.norm(x - y))
    assert errors.sqnr == pytest.approx(want, abs=1e-3)
    assert errors.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), abs=1e-6)
    assert errors.max_error == pytest.approx(np.abs(x - y).max(), rel=1e-4)
    assert (power.low, power.high) == (pytest.approx(x.min()), pytest.approx(x.max()))


def test_equal_arrays_are_exact_and_unlike_ones_have_no_distance() -> None:
    x = np.ones(5, np.float32)
    exact = between(x, x)
    assert exact is not None and exact.sqnr == np.inf and exact.cosine == 1.0
    assert between(x, np.ones(4, np.float32)) is None


def test_clipping_counts_what_lies_outside() -> None:
    clip, power = Clipping(-1.0, 1.0, 2 / 255), Power()
    x = row(np.array([0.5, 2.0, -3.0, 0.0]))
    clip.add(x, *power.add(x))
    assert clip.share == 0.5
    assert clip.energy == pytest.approx(1.0 + 4.0)
    assert clip.rounding < 0.01
    assert clip.used(power) == 1.0


def test_a_range_that_is_too_wide_is_used_in_part() -> None:
    clip, power = Clipping(0.0, 10.0, 10 / 255), Power()
    x = row(np.array([0.0, 1.0]))
    clip.add(x, *power.add(x))
    assert clip.used(power) == pytest.approx(0.1)
    assert clip.rounding == 1.0
