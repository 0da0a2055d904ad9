"""A metric of the user's: a function of a sample's outputs and its label, averaged over the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from octavo.errors import DataError, RecipeError
from octavo.evaluation.image_samples import ImageFeeds, image_source
from octavo.evaluation.labelled_samples import labelled_samples, whole_feeds
from octavo.evaluation.task import (
    Batch,
    Feeds,
    Metric,
    Outputs,
    PreparedTask,
    TaskContext,
    batches,
    column_mean,
    shapes_text,
)

Function = Callable[[Outputs, Any], float]


@dataclass(frozen=True)
class CustomMetric:
    """A metric that a function defines, and its options: labels, how images become inputs, a scale.

    ``origin`` is ``FILE.py:FUNCTION`` where the function came from a file: workers load it from there.
    """

    function: Function
    title: str
    higher_is_better: bool = True
    percent: bool = False
    origin: str | None = None
    labels: Any = None
    preprocess: Any = None
    size: tuple[int, int] | None = None
    scale: float | None = None
    summary: ClassVar[str] = "a metric of your own"
    OPTIONS: ClassVar[tuple[str, ...]] = ("labels", "preprocess", "size", "scale")

    @property
    def name(self) -> str:
        """Return the metric's name."""
        return self.title

    def open(self, data: Any, context: TaskContext) -> PreparedTask:
        """Return one batch for each sample; pairs ``(feed, label)`` are fed as they are."""
        source = image_source(data, self.preprocess, self.size)
        if isinstance(source.location, str | Path | np.ndarray | tuple) or self.labels is not None:
            found = labelled_samples(
                source.location, self.labels, context, scale=self.scale, label_arrays=True
            )
        else:
            found = whole_feeds(source.location, context)
        images = ImageFeeds.of(context.specs, source.preprocess, source.size) if found.are_images else None
        return PreparedTask(
            batches(list(zip(found.items, found.labels, strict=True)), 1),
            len(found.items),
            _Processing(self.function, self.title, self.origin, images, context.fixed_batch),
            (Metric(self.title, partial(column_mean, column=0), self.higher_is_better, self.percent),),
        )


@dataclass(frozen=True)
class _Processing:
    """Calls the function in the worker."""

    function: Function
    title: str
    origin: str | None
    images: ImageFeeds | None
    fixed: int | None

    def __reduce__(self) -> Any:
        function = None if self.origin is not None else self.function
        return _restored, (function, self.title, self.origin, self.images, self.fixed)

    def feed(self, batch: Batch) -> Feeds:
        source = batch.items[0][0]
        feed: Feeds = self.images.feed([source], self.fixed)[0] if self.images is not None else source
        return feed

    def rows(self, outputs: Outputs, batch: Batch, feed: Feeds) -> Sequence[Any]:
        try:
            value = float(self.function(outputs, batch.items[0][1]))
        except (DataError, RecipeError):
            raise
        except (Exception, SystemExit) as error:
            raise RecipeError(
                f"The metric {self.title!r} failed on sample {batch.indices[0]}: {type(error).__name__}: "
                f"{error}. It is called with the outputs {shapes_text(outputs)} and the sample's label."
            ) from error
        if math.isnan(value):
            raise DataError(f"The metric {self.title!r} returned NaN for sample {batch.indices[0]}.")
        return [(value,)]


def _restored(
    function: Function | None, title: str, origin: str | None, images: ImageFeeds | None, fixed: int | None
) -> _Processing:
    """Return the processing in a worker; a function that came from a file is loaded from it."""
    if function is None:
        from octavo.evaluation.task_registry import task_of

        function = task_of(str(origin), {}).function  # type: ignore[attr-defined]
    return _Processing(function, title, origin, images, fixed)
