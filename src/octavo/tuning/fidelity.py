"""How close a model's answers are to the float model's, part by part of its outputs.

One figure for all outputs would be that of the largest numbers: boxes of 0 … 640 beside scores of 0 … 1 drown
them. So each output is judged by itself, and one that holds both kinds side by side is judged as two. The
worst part counts::

    SQNR = 10 · log10( Σ x² / Σ (x − y)² )   over all samples that were held back

Where a part is scores, the share of places with the same best class is counted as well. A class that is the
answer nearly everywhere (background, the blank of a text reader) says nothing: places where both models give
it are left out. So is padding, where an input is a mask that says so: nobody reads what a model makes of it,
and it may be a third of all places and the loudest of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Answers = Mapping[str, npt.NDArray[Any]]
F64 = npt.NDArray[np.float64]

_MANY_CLASSES = 8192  # a last axis this long is a vocabulary
_MASKS = ("attention_mask", "input_mask", "mask")
_COMMON = 0.5  # a class that is the answer in a larger share of all places says nothing


@dataclass(frozen=True)
class Part:
    """An output, or those slices of it along an axis that hold the same kind of numbers."""

    output: str
    label: str
    axis: int | None = None
    slices: tuple[int, ...] = ()
    classes: int | None = None  # the axis of classes, where it holds scores
    common: int | None = None  # the class that is the answer nearly everywhere

    def of(self, answers: Answers) -> F64:
        """Its numbers."""
        found = answers[self.output].astype(np.float64)
        return found if self.axis is None else np.take(found, self.slices, axis=self.axis)


@dataclass(frozen=True)
class Tally:
    """Sums over some samples, for one part."""

    signal: float = 0.0
    noise: float = 0.0
    same: int = 0
    places: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.signal + other.signal,
            self.noise + other.noise,
            self.same + other.same,
            self.places + other.places,
        )

    @property
    def decibels(self) -> float:
        """The signal to noise ratio; an answer that is no number has none of it."""
        if math.isnan(self.noise):
            return -math.inf
        return math.inf if self.noise == 0 else 10 * math.log10(max(self.signal, 1e-300) / self.noise)


@dataclass(frozen=True)
class Fidelity:
    """The figures of one model: of the worst part, and of each."""

    sqnr_db: float
    agreement: float | None
    parts: Mapping[str, float]
    places: int = 0  # that the agreement was counted in


def parts_of(answers: Sequence[Answers]) -> tuple[Part, ...]:
    """What the outputs of a float model are made of, from some of its answers."""
    found: list[Part] = []
    for name, first in answers[0].items():
        if first.dtype.kind == "f" and first.size:
            found.extend(_parts(name, [one[name].astype(np.float64) for one in answers]))
    return tuple(found)


def _parts(name: str, seen: Sequence[F64]) -> list[Part]:
    mixed = _mixture(seen)
    if mixed is not None:
        axis, scores, rest = mixed
        return [Part(name, f"{name} (scores)", axis, scores), Part(name, f"{name} (the rest)", axis, rest)]
    classes = _classes(seen)
    return [Part(name, name, classes=classes, common=_common(seen, classes))]


def _mixture(seen: Sequence[F64]) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """The axis along which scores of 0 … 1 lie beside larger numbers, and which are which."""
    rank = seen[0].ndim
    for axis in (1, rank - 1) if rank >= 3 else ():
        if len({one.shape[axis] for one in seen}) != 1 or not 2 < seen[0].shape[axis] <= 4096:
            continue
        others = tuple(i for i in range(rank) if i != axis)
        low = np.min([one.min(axis=others) for one in seen], axis=0)
        high = np.max([one.max(axis=others) for one in seen], axis=0)
        is_score = (low >= 0) & (high <= 1)
        if is_score.any() and (high > 2).any():
            numbers = np.arange(len(is_score))
            return axis, tuple(map(int, numbers[is_score])), tuple(map(int, numbers[~is_score]))
    return None


def _classes(seen: Sequence[F64]) -> int | None:
    """The axis of classes, where an output is scores: logits of a sample, or a distribution a place."""
    rank, last = seen[0].ndim, seen[0].shape[-1]
    if rank < 2 or last < 2:
        return None
    if rank == 2:
        norms = np.concatenate([np.linalg.norm(one, axis=1) for one in seen])
        unit = bool(np.allclose(norms, 1, atol=1e-3)) and min(float(one.min()) for one in seen) < 0
        return None if unit else 1
    sums = np.concatenate([one.sum(axis=-1).ravel() for one in seen])
    distribution = bool(np.allclose(sums, 1, atol=1e-2)) and min(float(one.min()) for one in seen) >= 0
    return rank - 1 if distribution or last > _MANY_CLASSES else None


def _common(seen: Sequence[F64], classes: int | None) -> int | None:
    if classes is None or seen[0].ndim < 3:
        return None
    best = np.concatenate([one.argmax(axis=classes).ravel() for one in seen])
    kinds, counts = np.unique(best, return_counts=True)
    return int(kinds[counts.argmax()]) if counts.max() > _COMMON * len(best) else None


def tallies(
    parts: Sequence[Part], expected: Answers, found: Answers, inputs: Answers | None = None
) -> tuple[Tally, ...]:
    """One sample's sums, for each part; with its ``inputs``, over the places that a mask of them leaves."""
    mask = _mask(inputs or {})
    return tuple(_tally(part, part.of(expected), part.of(found), mask) for part in parts)


def _mask(inputs: Answers) -> npt.NDArray[np.bool_] | None:
    """Which places of which row are no padding; None where no input says so, or there is none.

    Other masks mark padding, places of global attention or words to be guessed: the name has to be one of
    those that are always used for this, and each row one stretch of ones.
    """
    for name, values in inputs.items():
        if name.lower() in _MASKS and values.ndim == 2 and np.isin(values, (0, 1)).all():
            real: npt.NDArray[np.bool_] = np.not_equal(values, 0)
            begins = real[:, :1].sum(axis=1) + (real[:, 1:] & ~real[:, :-1]).sum(axis=1)
            return real if (begins == 1).all() and not real.all() else None
    return None


def _tally(part: Part, x: F64, y: F64, mask: npt.NDArray[np.bool_] | None = None) -> Tally:
    same = places = 0
    classes = part.classes
    by_place = x.shape == y.shape and x.ndim > 2 and classes in (None, x.ndim - 1)
    if mask is not None and by_place and x.shape[:2] == mask.shape:
        x, y = x[mask], y[mask]
        classes = None if classes is None else -1
    if classes is not None and x.shape == y.shape:
        mine, theirs = x.argmax(axis=classes), y.argmax(axis=classes)
        counts = np.ones(mine.shape, bool)
        if part.common is not None:
            counts = (mine != part.common) | (theirs != part.common)
        same, places = int(np.count_nonzero((mine == theirs) & counts)), int(np.count_nonzero(counts))
    if x.shape != y.shape:
        return Tally(float(np.sum(x * x)), math.nan)
    return Tally(float(np.sum(x * x)), float(np.sum((x - y) ** 2)), same, places)


def judged(parts: Sequence[Part], sums: Sequence[Sequence[Tally]]) -> Fidelity:
    """The figures from the sums of all samples, added in the order of the samples."""
    whole = [sum((row[i] for row in sums), Tally()) for i in range(len(parts))]
    each = {part.label: tally.decibels for part, tally in zip(parts, whole, strict=True)}
    places = sum(tally.places for tally in whole)
    return Fidelity(
        min(each.values(), default=math.inf),
        sum(tally.same for tally in whole) / places if places else None,
        each,
        places,
    )
