"""Statistics of a tensor's values as states that merge exactly: the same bits in any split and order.

===================  ====================================================  =========================
state                holds                                                 grows with
===================  ====================================================  =========================
ExtremesState        minimum and maximum                                   nothing
SampleExtremesState  minimum and maximum of each sample, for averages      samples, 24 bytes each
HistogramState       extremes, and counts on a grid of powers of two       nothing
MagnitudeState       a histogram for each magnitude of samples             how samples differ
ChannelState         minimum and maximum of each channel                   channels
MomentsState         exact sums of values and squares: mean, variance      nothing
GramState            ``Xᵀ X`` over the last axis                           logarithm of samples
SumState             the sum over samples, element by element              logarithm of samples
CombinedState        one of the first four, and any of the last four       its parts
===================  ====================================================  =========================

A state has ``update(values, sample index)``, ``merge(other)``, ``to_bytes()`` and ``from_bytes(data)``; its
bytes start with a version. To add one: a file here, and its class in ``STATES`` of :mod:`.combined`, or in
``PARTS`` where it says nothing of extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.calibration.statistics.combined import STATES, CombinedState, FurtherStatistic, first_of
from octavo.calibration.statistics.exact_sums import GramState, SumState
from octavo.calibration.statistics.extremes import ChannelState, ExtremesState, SampleExtremesState
from octavo.calibration.statistics.histograms import HistogramState
from octavo.calibration.statistics.magnitude import MagnitudeState
from octavo.calibration.statistics.moments import MomentsState
from octavo.core.stats import State

__all__ = [
    "KINDS",
    "ChannelState",
    "CombinedState",
    "ExtremesState",
    "FurtherStatistic",
    "GramState",
    "HistogramState",
    "MagnitudeState",
    "MomentsState",
    "SampleExtremesState",
    "SumState",
    "first_of",
]

KINDS: Mapping[str, Callable[[bytes], State]] = {**STATES, CombinedState.kind: CombinedState.from_bytes}
