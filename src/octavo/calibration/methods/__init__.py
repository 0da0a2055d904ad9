"""Methods: how the range of a tensor is computed from its statistics.

A method is a pure function ``(state, method, scheme) → Range``.
To add one: a file here with its settings (a subclass of :class:`octavo.core.scheme.Method`) and its function,
and a line in ``_FUNCTIONS``. The settings of the built-in methods are in :mod:`octavo.core.scheme`.
Where only the extremes of a tensor could be observed, they are its range by any method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from octavo.calibration.methods.minmax import minmax
from octavo.calibration.statistics import ExtremesState, HistogramState, SampleExtremesState, first_of
from octavo.core.lazy import load_entry
from octavo.core.requests import Extremes, Histogram, Request
from octavo.core.scheme import Method, MinMax, Scheme
from octavo.core.stats import Range, State
from octavo.errors import TableError

__all__ = ["READERS", "need_of", "read"]

Reader: TypeAlias = Callable[[HistogramState, Any, Scheme], Range]  # of the state, the method and its scheme

_FUNCTIONS = {  # name of the method: module of octavo.calibration.methods, and function
    "percentile": "percentile:percentile",
    "entropy": "entropy:entropy",
    "mse": "mse:mse",
    "distribution": "spread:distribution",
    "auto": "auto:auto",
}
READERS: dict[str, Reader] = {name: load_entry(__name__, line) for name, line in _FUNCTIONS.items()}


def need_of(method: Method) -> Request:
    """Return what has to be found out about a tensor for a method: no more than it reads."""
    if isinstance(method, MinMax):
        return Request(Extremes(each_sample=method.average or method.momentum is not None))
    return Request(Histogram())


def read(state: State, scheme: Scheme) -> Range:
    """Return the range of a tensor by the method of its scheme."""
    state = first_of(state)
    if isinstance(state, ExtremesState | SampleExtremesState):
        return minmax(state, scheme.method if isinstance(scheme.method, MinMax) else MinMax())
    if not isinstance(state, HistogramState):
        raise TableError(f"No method reads statistics of kind {state.kind!r}; collect them again.")
    if isinstance(scheme.method, MinMax):
        return minmax(state.extremes, scheme.method)
    return READERS[scheme.method.name](state, scheme.method, scheme)
