"""Samples joined into one feed, and the rows of the padding removed again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.errors import DataError, ModelError
from octavo.evaluation.task import Array


def join_feeds(feeds: Sequence[Mapping[str, Array]], fixed: int | None) -> dict[str, Array]:
    """Join feeds of one sample each; the last one is repeated where the model needs a full batch."""
    if len(feeds) == 1 and fixed in (None, len(np.atleast_1d(next(iter(feeds[0].values()))))):
        return dict(feeds[0])
    try:
        joined = {
            name: np.concatenate([feed[name] for feed in feeds]) if feeds[0][name].ndim else feeds[0][name]
            for name in feeds[0]
        }
    except ValueError as error:
        raise DataError(
            f"Samples of different shapes can't be fed together ({error}); evaluate them one by one: batch=1."
        ) from error
    return {name: pad_rows(array, fixed) for name, array in joined.items()}


def pad_rows(array: Array, fixed: int | None) -> Array:
    """Repeat the last row until there are as many as the model's fixed batch size."""
    if fixed is None or array.ndim == 0 or len(array) >= fixed:
        return array
    return np.concatenate([array, np.repeat(array[-1:], fixed - len(array), axis=0)])


def strip_padding(array: Array, count: int) -> Array:
    """Return the rows of the ``count`` real samples."""
    if len(array) < count:
        raise ModelError(
            f"The model returned {len(array)} rows for {count} samples: the first axis of its output is not "
            "the batch. Evaluate the samples one by one: batch=1."
        )
    return array[:count]
