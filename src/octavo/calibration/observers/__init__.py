"""Observers: what is remembered of a tensor's values. Exact: merging gives the same bits in any order.

A state has ``update(values, sample index)``, ``merge(other)``, ``to_bytes()`` and ``from_bytes(data)``. To
add one: a file here, and a line in :data:`KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.calibration.observers.histogram import HistogramState
from octavo.calibration.observers.minmax import MinMaxState
from octavo.core.stats import State

__all__ = ["KINDS", "HistogramState", "MinMaxState"]

KINDS: Mapping[str, Callable[[bytes], State]] = {
    MinMaxState.kind: MinMaxState.from_bytes,
    HistogramState.kind: HistogramState.from_bytes,
}
