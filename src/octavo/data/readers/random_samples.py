"""Random samples, to try out size and speed; never used unless they are requested by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.data.source import Sample, Specs, span
from octavo.errors import DataError
from octavo.model.runtime.samples import sample_inputs

NOTE = (
    "calibrated with random data: the ranges are those of noise, which is enough to measure size and speed, "
    "but not for a model that is used"
)

MAX_SAMPLES = 1_000_000  # samples; more is a mistake, as noise has no more to tell


@dataclass(frozen=True)
class RandomData:
    """Random samples for any model."""

    samples: int = 8
    seed: int = 0

    def for_inputs(self, specs: Specs) -> RandomSamples:
        """Return the samples for a model with these inputs."""
        return RandomSamples(tuple(specs), self.samples, self.seed)


@dataclass(frozen=True, eq=False)
class RandomSamples:
    """Random samples for one model; the seed and the index decide each."""

    specs: Specs
    length: int
    seed: int
    notes: tuple[str, ...] = (NOTE,)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index."""
        for index in span(self.length, first, stop):
            yield sample_inputs(self.specs, seed=(self.seed << 32) + index)


def random_data(samples: int = 8, seed: int = 0) -> RandomData:
    """Return random samples that fit the model's inputs: to try things out, not for a model that is used."""
    if samples < 1 or seed < 0:
        raise DataError(
            f"{samples} random samples of seed {seed} can't be made; give one or more, and a seed of 0 or "
            "more."
        )
    if samples > MAX_SAMPLES:
        raise DataError(
            f"{samples} random samples are more than {MAX_SAMPLES}, the most that are made; give fewer."
        )
    return RandomData(samples, seed)
