"""Observers: what is remembered of a tensor's values. Exact: merging gives the same bits in any order.

==============  ====================================================  ==============================
state           holds                                                 grows with
==============  ====================================================  ==============================
ExtremesState   minimum and maximum                                   nothing
MinMaxState     minimum and maximum of each sample, for averages      samples, 24 bytes each
HistogramState  extremes, and counts on a grid of powers of two       nothing
LoudnessState   histograms, those of loud samples apart               how samples differ
ChannelState    minimum and maximum of each channel                   channels
MomentsState    exact sums of values and squares: mean, variance      nothing
GramState       ``Xᵀ X`` over the last axis                           logarithm of samples
TotalState      the sum over samples, element by element              logarithm of samples
ManyState       one of the first four, and any of the last four       its parts
==============  ====================================================  ==============================

A state has ``update(values, sample index)``, ``merge(other)``, ``to_bytes()`` and ``from_bytes(data)``; its
bytes start with a version. To add one: a file here, and a line in :data:`KINDS`, or in ``PARTS`` of
:mod:`.many` for one that says nothing of extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.calibration.observers.channels import ChannelState
from octavo.calibration.observers.extremes import ExtremesState
from octavo.calibration.observers.gram import GramState
from octavo.calibration.observers.histogram import HistogramState
from octavo.calibration.observers.loudness import LoudnessState
from octavo.calibration.observers.many import ManyState, Part
from octavo.calibration.observers.minmax import MinMaxState
from octavo.calibration.observers.moments import MomentsState
from octavo.calibration.observers.totals import TotalState
from octavo.core.stats import State

__all__ = [
    "KINDS",
    "ChannelState",
    "ExtremesState",
    "GramState",
    "HistogramState",
    "LoudnessState",
    "ManyState",
    "MinMaxState",
    "MomentsState",
    "Part",
    "TotalState",
]

KINDS: Mapping[str, Callable[[bytes], State]] = {
    state.kind: state.from_bytes
    for state in (ExtremesState, MinMaxState, HistogramState, LoudnessState, ManyState)
}
