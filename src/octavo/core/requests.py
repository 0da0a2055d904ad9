"""Statistics requests: what calibration has to find out about a tensor.

A :class:`Request` says what is kept of the values of a tensor (their extremes, a histogram, or a histogram
for each magnitude of samples) and which further statistics are collected beside that. Which values a
histogram counts is part of the histogram, so that requests can't contradict themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias


@dataclass(frozen=True)
class Extremes:
    """The smallest and the largest value; with ``each_sample`` those of every sample, for averages."""

    each_sample: bool = False


@dataclass(frozen=True)
class EveryNth:
    """Every ``step``-th value of a sample is counted."""

    step: int


@dataclass(frozen=True)
class Lattice:
    """The values at every ``step``-th position of a feature map, along height and width, are counted."""

    step: int


@dataclass(frozen=True)
class Histogram:
    """Extremes, and counts of the values in bins: of all values, unless ``subset`` says which."""

    extremes: Extremes = field(default_factory=Extremes)
    subset: EveryNth | Lattice | None = None


@dataclass(frozen=True)
class MagnitudeHistograms:
    """A histogram for each magnitude of samples; the tensor is a row that begins with their mean square."""


Kept: TypeAlias = Extremes | Histogram | MagnitudeHistograms


@dataclass(frozen=True)
class Request:
    """What is kept of a tensor's values, and further statistics."""

    kept: Kept = field(default_factory=Extremes)
    channels: int | None = None  # the extremes of each channel along this axis
    moments: bool = False  # mean and variance
    gram: bool = False  # Xᵀ X over the last axis
    sums: bool = False  # the sum over samples, element by element
    some_samples: bool = False  # of some samples that are evenly spread over the data, not of all

    @property
    def extremes(self) -> Extremes:
        """Return which extremes are requested, whatever else is."""
        kept = self.kept.extremes if isinstance(self.kept, Histogram) else self.kept
        return kept if isinstance(kept, Extremes) else Extremes()

    @property
    def subset(self) -> EveryNth | Lattice | None:
        """Return which values the histogram counts; None for all, or without a histogram."""
        return self.kept.subset if isinstance(self.kept, Histogram) else None

    @property
    def has_parts(self) -> bool:
        """Whether anything beside the kept values is requested."""
        return self.channels is not None or self.moments or self.gram or self.sums

    @property
    def needs_shape(self) -> bool:
        """Whether the values are needed in the shape of the tensor."""
        return self.channels is not None or self.gram or self.sums

    def with_histogram(self) -> Request:
        """Return the request with a histogram beside its extremes."""
        return replace(self, kept=Histogram(self.kept)) if isinstance(self.kept, Extremes) else self

    def __str__(self) -> str:
        """Return the request in the words that statistics files record, the same in files of any version."""
        step = self.subset.step if self.subset is not None else 0
        words = {
            "histogram": isinstance(self.kept, Histogram),
            "loudness": isinstance(self.kept, MagnitudeHistograms),
            "samples": self.extremes.each_sample,
            f"channels={self.channels}": self.channels is not None,
            "moments": self.moments,
            "gram": self.gram,
            "totals": self.sums,
            f"stride={step}": isinstance(self.subset, EveryNth),
            f"lattice={step}": isinstance(self.subset, Lattice),
            "some": self.some_samples,
        }
        return " ".join(word for word, is_requested in words.items() if is_requested) or "minmax"


FOR_EVERY_METHOD = Request(Histogram(Extremes(each_sample=True)))  # any calibration method can be read off it
