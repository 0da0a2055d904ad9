"""Serial and batch modes: samples that are fed one by one, stacked into feeds of several."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.calibration.readers.source import Array, Found, Sample, Source, Specs, least
from octavo.errors import DataError
from octavo.model.session import InputSpec


@dataclass(frozen=True, eq=False)
class Batches:
    """Feeds of ``size`` samples each, joined along their first axis; the last one may be smaller.

    ``limit`` counts samples, not feeds. Where the model's batch is fixed (``full``), samples that do not fill
    the last one are left out.
    """

    inner: Source
    size: int
    full: bool = False
    limit: int | None = None

    @property
    def length(self) -> int | None:
        """The number of feeds."""
        samples = self.sample_count
        if samples is None:
            return None
        return samples // self.size if self.full else -(-samples // self.size)

    @property
    def sample_count(self) -> int | None:
        """The number of samples, where it is known."""
        return None if self.inner.length is None else least(self.inner.length, self.limit)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the inner source has to say, and samples that were left out."""
        inner: tuple[str, ...] = tuple(getattr(self.inner, "notes", ()))
        rest = (self.sample_count or 0) % self.size
        if not self.full or not rest:
            return inner
        return (
            *inner,
            f"the model takes batches of {self.size}; the last {rest} samples fill none and are left out",
        )

    def limited(self, samples: int) -> Batches:
        """The feeds of the first samples."""
        return replace(self, limit=least(self.limit, samples))

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Feeds by index."""
        end = least(None if stop is None else stop * self.size, self.limit)
        if end is not None and end <= first * self.size:
            return
        samples = self.inner.portion(first * self.size, end)
        while group := list(itertools.islice(samples, self.size)):
            if self.full and len(group) < self.size:
                return
            yield join(group)


def join(group: Sequence[Sample]) -> Sample:
    """One feed out of several samples."""
    places = [where for sample in group if (where := getattr(sample, "where", ""))]
    where = f"{places[0]} … {places[-1]}" if len(places) > 1 else "".join(places)
    try:
        joined = {name: _joined([sample[name] for sample in group]) for name in group[0]}
    except (ValueError, KeyError) as error:
        raise DataError(
            f"The samples{f' {where}' if where else ''} can't be put into one batch: {error}. Give them "
            "one by one (batch 1), or at one size."
        ) from error
    return Found(joined, where)


def _joined(arrays: Sequence[Any]) -> Array:
    first = np.asarray(arrays[0])
    return first if first.ndim == 0 else np.concatenate(arrays)


def batch_of(spec: InputSpec) -> int | None:
    """The batch size that the model fixes for an input."""
    batch = spec.shape[0] if spec.shape else None
    return batch if isinstance(batch, int) and batch > 0 else None


def in_batches(source: Source, wanted: int | None, spec: InputSpec) -> Source:
    """A source of single samples in the batches that were asked for, or that the model fixes."""
    fixed = batch_of(spec)
    if wanted is not None and wanted < 1:
        raise DataError(f"A batch of {wanted} samples can't be fed; use at least 1.")
    if fixed is not None and wanted not in (None, fixed):
        raise DataError(
            f"The model takes {spec.name!r} in batches of {fixed}, and {wanted} was asked for; leave the "
            "batch size out."
        )
    size = fixed or wanted or 1
    if size == 1:
        return source
    if fixed is not None and source.length is not None and source.length < size:
        raise DataError(
            f"The model takes {spec.name!r} in batches of {size}, and there are {source.length} samples; add "
            "some."
        )
    return Batches(source, size, full=fixed is not None)


@dataclass(frozen=True, eq=False)
class Batched:
    """Any data, put into batches once the model is known."""

    data: Any
    size: int

    def for_inputs(self, specs: Specs) -> Source:
        """The feeds for a model with these inputs."""
        from octavo.calibration.readers import source_of

        inner = source_of(self.data, specs)
        open_spec = next((spec for spec in specs if spec.shape), None)
        if open_spec is None or batch_of(open_spec) is not None:
            return inner
        return in_batches(inner, self.size, open_spec)
