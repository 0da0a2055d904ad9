"""Data readers as a user writes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.quantization.calibrate import CalibrationDataReader


class ListReader(CalibrationDataReader):
    """Gives the samples of a list."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self._samples = samples
        self._at, self._end = 0, len(samples)

    def get_next(self) -> dict[str, Any] | None:
        if self._at >= self._end:
            return None
        self._at += 1
        return self._samples[self._at - 1]

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._at, self._end = start_index, end_index


def images(count: int = 4, batch: int = 1, seed: int = 0, scale: float = 1.0) -> list[dict[str, Any]]:
    """Samples for ``builders.conv_net``."""
    rng = np.random.default_rng(seed)
    return [{"x": (scale * rng.standard_normal((batch, 3, 8, 8))).astype(np.float32)} for _ in range(count)]
