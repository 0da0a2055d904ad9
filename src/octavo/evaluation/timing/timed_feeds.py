"""The feeds that models are timed on: a few samples of the data, or random ones, in batches."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.data.feeds import Feeds as CheckedFeeds
from octavo.errors import DataError, ModelError
from octavo.model.runtime.samples import guesses
from octavo.model.runtime.session import InputSpec, Session

FEEDS = 4  # different samples in one timed call, where there is data
Feed = dict[str, npt.NDArray[Any]]


def random_feeds(session: Session, batch: int | None) -> list[Feed]:
    """Return one random feed that the model runs on; dynamic axes are tried with growing sizes."""
    specs = session.inputs
    dims = dict.fromkeys(_batch_symbols(specs), batch) if batch else {}
    first: Feed | None = None
    for guess in guesses(specs, dims):
        feed = _batched([guess], specs, batch)
        first = first or feed
        with contextlib.suppress(ModelError):
            session.run(feed)
            return [feed]
    return [first or {}]


def bench_feeds(data: Any, specs: Sequence[InputSpec], batch: int | None) -> list[Feed]:
    """Return the first samples of the data in batches of the requested size."""
    count = FEEDS * (batch or 1)
    taken = list(itertools.islice(CheckedFeeds(data, specs), count))
    if batch is None or len(_rows(taken[0], specs)) != 1:
        return [_batched([feed], specs, batch) for feed in taken[:FEEDS]]
    groups = [taken[start : start + batch] for start in range(0, len(taken), batch)]
    return [_batched(group, specs, batch) for group in groups if len(group) == len(groups[0])]


def _batch_symbols(specs: Sequence[InputSpec]) -> list[str]:
    return [spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], str)]


def _has_dynamic_batch(spec: InputSpec) -> bool:
    return bool(spec.shape) and (not isinstance(spec.shape[0], int) or spec.shape[0] <= 0)


def _rows(feed: Mapping[str, Any], specs: Sequence[InputSpec]) -> Any:
    return np.atleast_1d(feed[specs[0].name])


def _batched(feeds: Sequence[Feed], specs: Sequence[InputSpec], batch: int | None) -> Feed:
    """Join feeds, and repeat them up to the batch size, along first axes that are dynamic."""
    if batch is None:
        return dict(feeds[0])
    if not any(_has_dynamic_batch(spec) for spec in specs):
        have = len(_rows(feeds[0], specs))
        if have != batch:
            raise DataError(
                f"The model takes batches of {have} only, not {batch}; leave the batch out, or export the "
                "model with a dynamic batch axis."
            )
        return dict(feeds[0])
    joined: Feed = {}
    for spec in specs:
        arrays = [feed[spec.name] for feed in feeds]
        if not _has_dynamic_batch(spec):
            joined[spec.name] = arrays[0]
            continue
        try:
            whole = np.concatenate(arrays)
        except ValueError as error:
            raise DataError(f"Samples of different shapes can't form a batch of {batch}: {error}.") from error
        joined[spec.name] = np.take(whole, np.arange(batch) % len(whole), axis=0)
    return joined


def batch_of(feed: Feed, specs: Sequence[InputSpec]) -> int | None:
    """Return how many samples the first input of a feed holds."""
    first = feed[specs[0].name]
    return len(first) if first.ndim else None
