"""Methods: how a range is read off what was observed of a tensor. Pure functions ``(state, scheme) → Range``.

To add one: its settings as a class in :mod:`octavo.core.scheme`, a file here, and a case in :func:`read`.
Where only the extremes of a tensor could be observed, they are its range by any method.
"""

from __future__ import annotations

from octavo.calibration.methods.auto import auto
from octavo.calibration.methods.distribution import distribution
from octavo.calibration.methods.entropy import entropy
from octavo.calibration.methods.minmax import minmax
from octavo.calibration.methods.mse import mse
from octavo.calibration.methods.percentile import percentile
from octavo.calibration.observers import ExtremesState, HistogramState, ManyState, MinMaxState
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, Method, MinMax, Percentile, Scheme
from octavo.core.stats import Need, Range, State
from octavo.errors import TableError

__all__ = ["need", "need_of", "needs_histogram", "read"]


def needs_histogram(method: Method) -> bool:
    """Whether a method reads the values rather than only their extremes."""
    return not isinstance(method, MinMax)


def need_of(method: Method) -> Need:
    """What has to be found out about a tensor for a method: no more than it reads."""
    if isinstance(method, MinMax):
        return Need(samples=method.average or method.momentum is not None)
    return Need(histogram=True)


def need(scheme: Scheme) -> Need:
    """What has to be found out about a tensor of this scheme."""
    return need_of(scheme.method)


def read(state: State, scheme: Scheme) -> Range:
    """The range of a tensor by the method of its scheme."""
    if isinstance(state, ManyState):
        state = state.first
    if isinstance(state, ExtremesState | MinMaxState):
        return minmax(state, scheme.method if isinstance(scheme.method, MinMax) else MinMax())
    if not isinstance(state, HistogramState):
        raise TableError(f"No method reads statistics of kind {state.kind!r}; collect them again.")
    match scheme.method:
        case MinMax():
            return minmax(state.extremes, scheme.method)
        case Percentile():
            return percentile(state, scheme.method, scheme)
        case Entropy():
            return entropy(state, scheme.method)
        case MSE():
            return mse(state, scheme)
        case Distribution():
            return distribution(state)
        case Auto():
            return auto(state, scheme)
