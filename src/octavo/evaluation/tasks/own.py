"""A metric of one's own: a function of a batch's outputs and its label, averaged over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError, RecipeError
from octavo.evaluation.task import Batch, Feeds, Figure, Outputs, Setting, Work, batches

Function = Callable[[Outputs, Any], float]


@dataclass(frozen=True)
class Own:
    """A metric that a function defines."""

    function: Function
    title: str
    higher_is_better: bool = True
    percent: bool = False
    origin: str | None = None
    summary: ClassVar[str] = "a metric of your own"

    @property
    def name(self) -> str:
        """The metric's name."""
        return self.title

    def open(self, data: Any, setting: Setting) -> Work:
        """Pairs of ``(feed, label)``, each fed as it is."""
        from octavo.evaluation.labelled import feed_pairs

        pairs = feed_pairs(data, setting)
        return Work(
            batches(pairs, 1),
            len(pairs),
            _Reading(self.function, self.title, self.origin),
            (Figure(self.title, mean, self.higher_is_better, self.percent),),
        )


def mean(rows: Any) -> float:
    """The mean of the first column."""
    return float(rows[:, 0].mean())


@dataclass(frozen=True)
class _Reading:
    """Calls the function in the worker; one that came from a file is loaded from it there."""

    function: Function
    title: str
    origin: str | None

    def __reduce__(self) -> Any:
        if self.origin is not None:
            return _again, (self.origin, self.title)
        return _Reading, (self.function, self.title, None)

    def feed(self, batch: Batch) -> Feeds:
        feed: Feeds = batch.parts[0][0]
        return feed

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        try:
            value = float(self.function(outputs, batch.parts[0][1]))
        except (DataError, RecipeError):
            raise
        except Exception as error:
            raise RecipeError(
                f"The metric {self.title!r} failed on sample {batch.indices[0]}: {type(error).__name__}: "
                f"{error}. It is called with the outputs {_shapes(outputs)} and the sample's label."
            ) from error
        if math.isnan(value):
            raise DataError(f"The metric {self.title!r} gave NaN for sample {batch.indices[0]}.")
        return [(value,)]


def _again(origin: str, title: str) -> _Reading:
    from octavo.evaluation.registry import task_of

    own = task_of(origin, {})
    return _Reading(own.function, title, origin)  # type: ignore[attr-defined]


def _shapes(outputs: Outputs) -> str:
    return ", ".join(f"{name!r} {list(np.shape(value))}" for name, value in outputs.items())
