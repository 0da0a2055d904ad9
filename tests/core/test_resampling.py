"""Intervals over resampled samples."""

from __future__ import annotations

import numpy as np

from octavo.core.intervals import sqnr_interval


def test_the_interval_of_an_sqnr_holds_its_value_and_narrows_with_samples() -> None:
    rng = np.random.default_rng(0)
    signal, noise = rng.uniform(50, 150, (400, 1)), rng.uniform(0.5, 1.5, (400, 1))
    whole = 10 * np.log10(signal.sum() / noise.sum())
    few, many = sqnr_interval(signal[:8], noise[:8]), sqnr_interval(signal, noise)
    assert few is not None and many is not None
    assert many[0] < whole < many[1]
    assert few[1] - few[0] > 3 * (many[1] - many[0])


def test_one_sample_has_no_interval() -> None:
    assert sqnr_interval(np.ones((1, 1)), np.ones((1, 1))) is None


def test_a_part_of_zeros_without_noise_leaves_the_interval_to_the_others() -> None:
    rng = np.random.default_rng(0)
    signal, noise = rng.uniform(50, 150, (40, 1)), rng.uniform(0.5, 1.5, (40, 1))
    both = [np.hstack([np.zeros((40, 1)), one]) for one in (signal, noise)]
    assert sqnr_interval(*both) == sqnr_interval(signal, noise)
