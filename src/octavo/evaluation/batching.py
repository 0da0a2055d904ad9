"""Samples together in one feed, and apart again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, ModelError
from octavo.evaluation.task import Setting

Array = npt.NDArray[Any]


def batch_size(setting: Setting, default: int) -> int:
    """How many samples are fed together: the model's own number where it is fixed, else the call's wish."""
    first = setting.specs[0].shape[:1] if setting.specs else ()
    fixed = first[0] if first and isinstance(first[0], int) and first[0] > 0 else None
    if fixed is not None and setting.batch is not None and setting.batch != fixed:
        raise ModelError(
            f"The model takes batches of {fixed}, and {setting.batch} was asked for; leave the batch out, or "
            "export the model with an open batch."
        )
    return fixed or (default and (setting.batch or default))


def joined(feeds: Sequence[Mapping[str, Array]], fixed: int | None) -> dict[str, Array]:
    """Feeds of one sample each as one; the last is repeated where the model wants a full batch."""
    if len(feeds) == 1 and (fixed is None or fixed == len(_first(feeds[0]))):
        return dict(feeds[0])
    try:
        together = {
            name: np.concatenate([feed[name] for feed in feeds]) if feeds[0][name].ndim else feeds[0][name]
            for name in feeds[0]
        }
    except ValueError as error:
        raise DataError(
            f"Samples of different shapes can't be fed together ({error}); evaluate them one by one: batch=1."
        ) from error
    return {name: padded(array, fixed) for name, array in together.items()}


def _first(feed: Mapping[str, Array]) -> Array:
    return np.atleast_1d(next(iter(feed.values())))


def padded(array: Array, fixed: int | None) -> Array:
    """An array with its last row repeated up to the batch that a model insists on."""
    if fixed is None or array.ndim == 0 or len(array) >= fixed:
        return array
    return np.concatenate([array, np.repeat(array[-1:], fixed - len(array), axis=0)])


def without_padding(array: Array, count: int) -> Array:
    """The rows of real samples."""
    if len(array) < count:
        raise ModelError(
            f"The model gave {len(array)} rows for {count} samples; its output has no batch axis in front. "
            "Evaluate it one by one: batch=1."
        )
    return array[:count]
