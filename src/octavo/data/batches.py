"""Batches: samples that come one by one, joined into feeds of several."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.data.source import Array, FoundIn, Sample, Source, Specs, least
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec


def joined(group: Sequence[Sample]) -> Sample:
    """Join samples along their first axes into one feed."""
    where = places(group)
    try:
        found = {name: _concatenated([sample[name] for sample in group]) for name in group[0]}
    except (ValueError, KeyError) as error:
        raise DataError(
            f"The samples{f' {where}' if where else ''} can't be put into one batch: {error}. Give them "
            "one by one (batch 1), or at one size."
        ) from error
    return FoundIn(found, where)


def places(group: Sequence[Sample]) -> str:
    """Name the places where samples were found: the first and the last."""
    found = [where for sample in group if (where := getattr(sample, "where", ""))]
    return f"{found[0]} … {found[-1]}" if len(found) > 1 else "".join(found)


def _concatenated(arrays: Sequence[Any]) -> Array:
    first = np.asarray(arrays[0])
    return first if first.ndim == 0 else np.concatenate(arrays)


@dataclass(frozen=True, eq=False)
class Batches:
    """Feeds of ``size`` samples each; the last one may be smaller.

    ``limit`` counts samples, not feeds. Where the model's batch is fixed (``full``), samples that do not fill
    the last one are left out.
    """

    inner: Source
    size: int
    full: bool = False
    limit: int | None = None
    join: Callable[[Sequence[Sample]], Sample] = joined

    @property
    def length(self) -> int | None:
        """Return the number of feeds."""
        samples = self.sample_count
        if samples is None:
            return None
        return samples // self.size if self.full else -(-samples // self.size)

    @property
    def sample_count(self) -> int | None:
        """Return the number of samples, where it is known."""
        return None if self.inner.length is None else least(self.inner.length, self.limit)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the inner source, and samples that are left out."""
        found: tuple[str, ...] = tuple(getattr(self.inner, "notes", ()))
        rest = (self.sample_count or 0) % self.size
        if self.full and rest:
            left_out = f"the last {rest} samples don't fill one and are left out"
            found = (*found, f"the model takes batches of {self.size}; {left_out}")
        return found

    def limited(self, samples: int) -> Batches:
        """Return the feeds of the first samples."""
        return replace(self, limit=least(self.limit, samples))

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give feeds by index."""
        end = least(None if stop is None else stop * self.size, self.limit)
        if end is not None and end <= first * self.size:
            return
        samples = self.inner.portion(first * self.size, end)
        while group := list(itertools.islice(samples, self.size)):
            if self.full and len(group) < self.size:
                return
            yield self.join(group)


def batch_of(spec: InputSpec) -> int | None:
    """Return the batch size that the model fixes for an input."""
    batch = spec.shape[0] if spec.shape else None
    return batch if isinstance(batch, int) and batch > 0 else None


def batch_size(requested: int | None, spec: InputSpec) -> int:
    """Return the batch size that the model fixes, else the one that was requested, else 1."""
    fixed = batch_of(spec)
    if requested is not None and requested < 1:
        raise DataError(f"A batch of {requested} samples can't be fed; use at least 1.")
    if fixed is not None and requested not in (None, fixed):
        raise DataError(
            f"The model takes {spec.name!r} in batches of {fixed}, not of {requested}; leave the batch "
            "size out."
        )
    return fixed or requested or 1


def in_batches(source: Source, requested: int | None, spec: InputSpec) -> Source:
    """Return a source of single samples in the batches that were requested, or that the model fixes."""
    size, fixed = batch_size(requested, spec), batch_of(spec)
    if size == 1:
        return source
    if fixed is not None and source.length is not None and source.length < size:
        raise DataError(
            f"The model takes {spec.name!r} in batches of {size}, and there are only {source.length} "
            "samples; add "
            "some."
        )
    return Batches(source, size, full=fixed is not None)


@dataclass(frozen=True, eq=False)
class Batched:
    """Any data, put into batches once the model is known."""

    data: Any
    size: int

    def for_inputs(self, specs: Specs) -> Source:
        """Return the feeds for a model with these inputs."""
        from octavo.data.readers import source_of  # whose readers use this module

        inner = source_of(self.data, specs)
        open_spec = next((spec for spec in specs if spec.shape), None)
        if open_spec is None or batch_of(open_spec) is not None:
            return inner
        return in_batches(inner, self.size, open_spec)
