"""How close a model's outputs are to the float model's: in decibels, part by part, and by their meaning.

One figure for all outputs would be that of the largest numbers: boxes of 0 … 640 beside scores of 0 … 1 drown
them. So each output is judged by itself, and one that holds several kinds side by side is judged as several.
Of the boxes of a detector only those with a score worth reading count; vectors of unit length are compared by
direction. The worst part counts::

    SQNR = 10 · log10( Σ x² / Σ (x − y)² )   over all samples that were held back

A model whose outputs are all integers (labels, ids) is judged by how many of them are equal.

Where it is known what is read from an output (:mod:`octavo.tuning.heads`), or where it is scores of classes,
the share of equal answers is counted as well. A class that is the answer nearly everywhere (background, the
blank of a text reader) says nothing: places where both models give it are left out. So is padding, where an
input is a mask that says so: nobody reads what a model makes of it, and it may be a third of all places and
the largest values among them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from octavo.core.intervals import sqnr_interval
from octavo.tuning.heads import F64, MIN_SCORE, Answers, BoxReader, Reader, RowReader, readers_of
from octavo.tuning.language import LanguageModel, Predictions, TokenSums

_MANY_CLASSES = 8192  # a last axis this long is a vocabulary
_MASKS = ("attention_mask", "input_mask", "mask")
_COMMON = 0.5  # a class that is the answer in a larger share of all places says nothing
_OTHER_SCALE = 16.0  # slices of an output whose largest values differ by more are judged apart
_COHERENT = 0.8  # share of pixels with their right neighbour's class, where a map is one of classes


@dataclass(frozen=True)
class Part:
    """An output, or those slices of it along an axis that hold the same kind of numbers."""

    output: str
    label: str
    axis: int | None = None
    slices: tuple[int, ...] = ()
    classes: int | None = None  # the axis of classes, where it holds scores
    common: int | None = None  # the class that is the answer nearly everywhere
    unit: bool = False  # vectors that are compared by direction
    labels: bool = False  # integers, which are equal or not

    def of(self, answers: Answers, expected: Answers) -> F64:
        """Return its numbers."""
        found = answers[self.output].astype(np.float64)
        if self.unit:
            direction: F64 = found / np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), 1e-30)
            return direction
        return found if self.axis is None else np.take(found, self.slices, axis=self.axis)


@dataclass(frozen=True)
class RowPart:
    """The rows of an output that are read: those for which the float model's scores stand out."""

    output: str
    reader: RowReader
    classes: int | None = None

    @property
    def label(self) -> str:
        """Return how it is called in a report."""
        return f"{self.output} (rows that are read)"

    def of(self, answers: Answers, expected: Answers) -> F64:
        """Return its numbers."""
        found = answers[self.output]
        if found.shape != expected[self.output].shape:
            return found.astype(np.float64)
        return found[self.reader.is_read(expected)].astype(np.float64)


@dataclass(frozen=True)
class BoxPart:
    """The scores of a detector, or its boxes where the float model's scores stand out."""

    reader: BoxReader
    is_scores: bool
    classes: int | None = None

    @property
    def label(self) -> str:
        """Return how it is called in a report."""
        return f"{self.reader.scores} (scores)" if self.is_scores else f"{self.reader.boxes} (boxes)"

    def of(self, answers: Answers, expected: Answers) -> F64:
        """Return its numbers."""
        found = []
        for row in range(len(answers[self.reader.boxes])):
            boxes, scores = self.reader.table(answers, row)
            read = self.reader.table(expected, row)[1].max(axis=1) >= MIN_SCORE
            found.append(scores if self.is_scores else boxes[read] if len(read) == len(boxes) else boxes)
        return np.concatenate(found)


AnyPart: TypeAlias = Part | RowPart | BoxPart


@dataclass(frozen=True)
class Outputs:
    """What the outputs of a model are made of, and what is read from them."""

    parts: tuple[AnyPart, ...]
    readers: tuple[Reader, ...] = ()
    language: LanguageModel | None = None  # whose predictions are compared

    @classmethod
    def of_language_model(cls, model: LanguageModel) -> Outputs:
        """Return the logits alone: a cache is judged by what is predicted with it."""
        return cls((Part(model.logits, model.logits, classes=2),), language=model)


@dataclass(frozen=True)
class Tally:
    """Sums over some samples, for one part."""

    signal: float = 0.0
    noise: float = 0.0
    same: float = 0.0
    places: float = 0.0
    tokens: TokenSums = field(default_factory=TokenSums)

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.signal + other.signal,
            self.noise + other.noise,
            self.same + other.same,
            self.places + other.places,
            self.tokens + other.tokens,
        )

    @property
    def decibels(self) -> float:
        """Return the signal to noise ratio; an answer that is not a number has none."""
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
    sqnr_interval: tuple[float, float] | None = None  # 95 %, over resampled samples
    predictions: Predictions | None = None  # of a language model


def outputs_of(answers: Sequence[Answers], inputs: Answers | None = None) -> Outputs:
    """What the outputs of a float model are made of, by some of its answers and one sample of its inputs."""
    readers = readers_of(answers, inputs)
    read = {name for reader in readers for name in reader.outputs}
    kinds: dict[str, list[F64]] = {
        name: [one[name].astype(np.float64) for one in answers]
        for name, first in answers[0].items()
        if first.dtype.kind == "f" and first.size
    }
    found: list[AnyPart] = []
    for reader in readers:
        if isinstance(reader, BoxReader) and not reader.is_final:
            found += [BoxPart(reader, is_scores=True), BoxPart(reader, is_scores=False)]
            if reader.stop is not None:
                axis = 2 if reader.rows_first else 1
                extra = tuple(range(reader.stop, answers[0][reader.boxes].shape[axis]))
                found.append(Part(reader.boxes, f"{reader.boxes} (the rest)", axis, extra))
    decided = any(seen[0].ndim == 2 and _is_distribution(seen) for seen in kinds.values())
    channels = {array.shape[1] for array in (inputs or {}).values() if array.ndim == 4}
    for name, seen in kinds.items():
        rows = _rows_read(seen, readers)
        if name not in read and rows is not None:
            found.append(RowPart(name, rows))
        elif not any(isinstance(part, BoxPart) and name in part.reader.outputs for part in found):
            found.extend(_parts(name, seen, name in read, decided, channels))
    return Outputs(tuple(found) or _labels(answers), readers)


def _labels(answers: Sequence[Answers]) -> tuple[Part, ...]:
    """Return the outputs of integers: what there is to judge where no output is of floats."""
    found = []
    for name, first in answers[0].items():
        if first.dtype.kind in "iub" and first.size:
            kinds, counts = np.unique(
                np.concatenate([one[name].ravel() for one in answers]), return_counts=True
            )
            is_common = len(kinds) > 1 and counts.max() > _COMMON * counts.sum()
            found.append(
                Part(name, name, common=int(kinds[counts.argmax()]) if is_common else None, labels=True)
            )
    return tuple(found)


def _rows_read(seen: Sequence[F64], readers: Sequence[Reader]) -> RowReader | None:
    """Return the table of scores that says which rows of an output are read; None if there is none."""
    for reader in readers:
        if isinstance(reader, RowReader) and seen[0].ndim == 3 and seen[0].shape[1] == reader.rows:
            return reader
    return None


def _parts(
    name: str, seen: Sequence[F64], is_read: bool, decided: bool, channels: Collection[int]
) -> list[AnyPart]:
    mixed = _mixture(seen)
    if mixed is not None:
        axis, scores, rest = mixed
        groups = _by_scale(seen, axis, rest)
        labels = ["the rest"] if len(groups) == 1 else [f"the rest, {i + 1}" for i in range(len(groups))]
        parts: list[AnyPart] = [Part(name, f"{name} (scores)", axis, scores)]
        return parts + [
            Part(name, f"{name} ({label})", axis, group) for label, group in zip(labels, groups, strict=True)
        ]
    if _is_unit(seen):
        return [Part(name, name, unit=True)]
    classes = None if is_read else _classes(seen, decided, channels)
    return [Part(name, name, classes=classes, common=_common(seen, classes))]


def _by_scale(seen: Sequence[F64], axis: int, slices: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Slices of an output in groups of like magnitude: an angle beside boxes in pixels is another kind."""
    others = tuple(i for i in range(seen[0].ndim) if i != axis)
    peaks = np.max([np.abs(one).max(axis=others) for one in seen], axis=0)
    order = sorted(slices, key=lambda i: float(peaks[i]))
    groups: list[list[int]] = [[order[0]]]
    for before, after in pairwise(order):
        if peaks[after] > _OTHER_SCALE * max(float(peaks[before]), 1e-30):
            groups.append([])
        groups[-1].append(after)
    return [tuple(sorted(group)) for group in groups]


def _mixture(seen: Sequence[F64]) -> tuple[int, tuple[int, ...], tuple[int, ...]] | None:
    """Return the axis along which scores of 0 … 1 lie beside larger numbers, and which are which."""
    rank = seen[0].ndim
    for axis in (1, rank - 1) if rank >= 3 else ():
        if len({one.shape[axis] for one in seen}) != 1 or not 2 < seen[0].shape[axis] <= 4096:
            continue
        others = tuple(i for i in range(rank) if i != axis)
        low = np.min([one.min(axis=others) for one in seen], axis=0)
        high = np.max([one.max(axis=others) for one in seen], axis=0)
        is_score = (low >= 0) & (high <= 1)
        if (is_score & (high > 0)).any() and (high > 2).any():  # zeros alone may be padding
            numbers = np.arange(len(is_score))
            return axis, tuple(map(int, numbers[is_score])), tuple(map(int, numbers[~is_score]))
    return None


def _is_distribution(seen: Sequence[F64], axis: int = -1) -> bool:
    """Whether an axis holds shares that sum to one."""
    sums = np.concatenate([one.sum(axis=axis).ravel() for one in seen])
    return bool(np.allclose(sums, 1, atol=1e-2)) and min(float(one.min()) for one in seen) >= 0


def _is_unit(seen: Sequence[F64]) -> bool:
    """Whether an output is vectors of length one, compared by direction; a class that is sure is not."""
    if seen[0].ndim != 2 or seen[0].shape[-1] < 2 or _is_distribution(seen):
        return False
    norms = np.concatenate([np.linalg.norm(one, axis=1) for one in seen])
    return bool(np.allclose(norms, 1, atol=1e-3))


def _classes(seen: Sequence[F64], decided: bool, channels: Collection[int]) -> int | None:
    """Return the axis of classes, where an output is scores: of a sample, of a place or of a pixel.

    Beside an output that is a distribution (``decided``) other numbers of a sample are no classes. Of a map
    the argmax has to be of one piece, and it must not be an image: as many ``channels`` as an input has.
    """
    rank, shape = seen[0].ndim, seen[0].shape
    if rank < 2 or shape[-1] < 2:
        return None
    if rank == 2:
        return None if decided and not _is_distribution(seen) else 1
    if rank == 4 and shape[1] > 1 and min(shape[2:]) > 1 and shape[1] not in channels:
        return 1 if _is_distribution(seen, axis=1) or _is_coherent(seen) else None
    return rank - 1 if _is_distribution(seen) or shape[-1] > _MANY_CLASSES else None


def _is_coherent(seen: Sequence[F64]) -> bool:
    """Whether the best classes of a map form regions, of more than one class."""
    best = [one.argmax(axis=1) for one in seen]
    alike = [float(np.mean(one[..., 1:] == one[..., :-1])) for one in best]
    kinds = np.unique(np.concatenate([one.ravel() for one in best]))
    return float(np.mean(alike)) >= _COHERENT and len(kinds) > 1


def _common(seen: Sequence[F64], classes: int | None) -> int | None:
    if classes is None:
        return None
    best = np.concatenate([one.argmax(axis=classes).ravel() for one in seen])
    kinds, counts = np.unique(best, return_counts=True)
    least = _COMMON if seen[0].ndim > 2 else 1.0 - 1e-9  # of samples, only a class that all of them have
    return int(kinds[counts.argmax()]) if counts.max() > least * len(best) and len(best) > 1 else None


def tallies(
    outputs: Outputs, expected: Answers, found: Answers, inputs: Answers | None = None
) -> tuple[Tally, ...]:
    """One sample's sums, for each part and then for each reader.

    With its ``inputs``, parts are summed over the places that a mask of them leaves.
    """
    mask = _mask(inputs or {})
    parts = [
        _tally(part, part.of(expected, expected), part.of(found, expected), mask) for part in outputs.parts
    ]
    if outputs.language is not None:
        parts[0] = replace(parts[0], tokens=outputs.language.compare(expected, found, inputs or {}))
    return (*parts, *(_read(reader, expected, found) for reader in outputs.readers))


def _read(reader: Reader, expected: Answers, found: Answers) -> Tally:
    """What is read from a sample: how much of it is the same; nothing, where answers are not comparable."""
    comparable = all(
        found[name].shape == expected[name].shape and np.isfinite(found[name]).all()
        for name in reader.outputs
    )
    same, places = reader.compare(expected, found if comparable else expected)
    return Tally(same=same if comparable else 0.0, places=places)


def _mask(inputs: Answers) -> npt.NDArray[np.bool_] | None:
    """Return which places of which row are no padding; None where no input says so, or there is none.

    Other masks mark padding, places of global attention or words to be guessed: the name has to be one of
    those that are always used for this, and each row one stretch of ones.
    """
    for name, values in inputs.items():
        if name.lower() in _MASKS and values.ndim == 2 and np.isin(values, (0, 1)).all():
            real: npt.NDArray[np.bool_] = np.not_equal(values, 0)
            begins = real[:, :1].sum(axis=1) + (real[:, 1:] & ~real[:, :-1]).sum(axis=1)
            return real if (begins == 1).all() and not real.all() else None
    return None


def _tally(part: AnyPart, x: F64, y: F64, mask: npt.NDArray[np.bool_] | None = None) -> Tally:
    same = places = 0
    classes = part.classes
    by_place = x.shape == y.shape and x.ndim > 2 and classes in (None, x.ndim - 1)
    if mask is not None and by_place and x.shape[:2] == mask.shape:
        x, y = x[mask], y[mask]
        classes = None if classes is None else -1
    if classes is not None and x.shape == y.shape:
        mine, theirs = x.argmax(axis=classes), y.argmax(axis=classes)
        counts = np.ones(mine.shape, bool)
        if isinstance(part, Part) and part.common is not None:
            counts = (mine != part.common) | (theirs != part.common)
        same, places = int(np.count_nonzero((mine == theirs) & counts)), int(np.count_nonzero(counts))
    if x.shape != y.shape:
        return Tally(float(np.sum(x * x)), math.nan)
    if isinstance(part, Part) and part.labels:  # vectors with a one at the label: one that differs is two off
        counts = np.ones(x.shape, bool) if part.common is None else (x != part.common) | (y != part.common)
        places, other = int(np.count_nonzero(counts)), int(np.count_nonzero(x != y))
        return Tally(places, 2 * other, places - other, places)
    return Tally(float(np.sum(x * x)), float(np.sum((x - y) ** 2)), same, places)


def judged(outputs: Outputs, sums: Sequence[Sequence[Tally]]) -> Fidelity:
    """Return the figures from the sums of all samples, added in the order of the samples."""
    count = len(outputs.parts)
    whole = [sum((row[i] for row in sums), Tally()) for i in range(count + len(outputs.readers))]
    each = {part.label: tally.decibels for part, tally in zip(outputs.parts, whole, strict=False)}
    places = sum(tally.places for tally in whole)
    return Fidelity(
        min(each.values(), default=math.inf),
        sum(tally.same for tally in whole) / places if places else None,
        each,
        round(places),
        _sqnr_interval([row[:count] for row in sums]),
        Predictions.of(whole[0].tokens) if outputs.language is not None else None,
    )


def with_answers_of(held: Fidelity, seen: Fidelity) -> Fidelity:
    """Return the figures of held-back samples, with answers that were counted in samples of calibration too.

    Calibration may have fitted the latter better: the lower of the two shares counts.
    """
    if held.agreement is None or seen.agreement is None:
        return held
    places = held.places + seen.places
    both = (held.agreement * held.places + seen.agreement * seen.places) / places
    return replace(held, agreement=min(held.agreement, both), places=places)


def _sqnr_interval(sums: Sequence[Sequence[Tally]]) -> tuple[float, float] | None:
    """Return the 95 % interval of the worst part's SQNR, over resampled samples; None for one sample."""
    signal = np.array([[tally.signal for tally in row] for row in sums])
    noise = np.array([[tally.noise for tally in row] for row in sums])
    return sqnr_interval(signal, noise)
