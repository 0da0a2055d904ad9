"""Statistics files that an earlier release wrote are read, merged and written back to the same bytes."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from octavo import calibration
from octavo.core.stats import Stats

FILE = Path(__file__).parents[1] / "files" / "statistics_of_version_2.zlib"
KINDS = {
    "extremes": "extremes",
    "minmax": "minmax",
    "histogram": "histogram",
    "histogram of samples": "histogram",
    "loudness": "loudness",
    "many": "many",
    "many of a histogram": "many",
}


def rows() -> list[np.ndarray]:
    """The samples that the file was made from."""
    rng = np.random.default_rng(3)
    return [(rng.integers(-8, 8, (2, 3)) / 4).astype(np.float32) for _ in range(5)]


def test_a_file_of_an_earlier_release_is_written_back_to_the_same_bytes() -> None:
    content = zlib.decompress(FILE.read_bytes())
    stats = calibration.load_stats(content)
    assert {tensor: state.kind for tensor, state in stats.items()} == KINDS
    assert stats.to_bytes() == content


def test_the_numbers_of_an_earlier_file_are_those_of_its_samples() -> None:
    stats = calibration.load_stats(zlib.decompress(FILE.read_bytes()))
    values = np.stack(rows())
    for tensor in ("extremes", "minmax", "histogram", "many"):
        assert (stats[tensor].low, stats[tensor].high) == (values.min(), values.max())
    parts = stats["many"].parts  # type: ignore[attr-defined]
    np.testing.assert_array_equal(parts["channels"].high, values.max((0, 1)))
    np.testing.assert_array_equal(parts["totals"].total, values.sum(0, np.float64))
    np.testing.assert_array_equal(parts["gram"].matrix, sum(x.T.astype(np.float64) @ x for x in values))
    assert parts["moments"].mean == values.mean(dtype=np.float64)


def test_an_earlier_file_merges_with_further_samples() -> None:
    stats = calibration.load_stats(zlib.decompress(FILE.read_bytes()))
    assert stats.origin is not None
    tensors = ("extremes", "histogram", "loudness")  # the others hold their samples by number
    later = Stats({t: stats[t] for t in tensors}, 5, replace(stats.origin, spans=((5, 10),)))
    merged = stats.merge(later)
    assert merged.samples == 10
    assert merged["histogram"].total == 2 * stats["histogram"].total  # type: ignore[attr-defined]
