"""What a model's outputs mean: boxes, text or masks, recognized by shapes and values, not by names.

A share of equal answers says more of a detector or a text reader than decibels do. No labels are needed: the
float model's own answers are what a quantized one is compared with.

==========  =================================================================================================
detections  boxes beside scores, in one output (YOLO, as rows or as columns, with or without an objectness
            score, or with suppression done: box, score, class) or in two (SSD, DETR). Overlapping boxes are
            suppressed, and what is left is matched with float's: same class, and an overlap (IoU) of at
            least 0.5, 0.55 … 0.75. The share is the mean over these, each box weighing as its score does
text        a distribution over characters at each step (CTC): the best path, without repeats and blanks. The
            share is that of characters right by edit distance
rows        scores in 0 … 1 and another table for as many rows, from which boxes are computed later: at the
            rows that are read, how far the scores of the best class overlap
mask        one map of probabilities: the pixels that are on in both, by those on in either
==========  =================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Answers: TypeAlias = Mapping[str, npt.NDArray[Any]]
F64: TypeAlias = npt.NDArray[np.float64]
Seen: TypeAlias = Mapping[str, Sequence[F64]]  # each output's values, sample by sample

MIN_SCORE = 0.1  # boxes of lower scores are hardly ever read, and weigh little in precision
MOST_BOXES = 300  # of a sample, before overlapping ones are suppressed; the best count
SAME_OBJECT = 0.65  # overlap of two boxes of one class beyond which the lower score is suppressed
# At which boxes count as the same. Larger ones would count small shifts, which bring a box as often nearer to
# the object as away from it; decibels of the boxes see those.
OVERLAPS = np.linspace(0.5, 0.75, 6)
FEWEST_ROWS = 20  # a shorter table of boxes is something else
FEWEST_CHARACTERS = 5  # classes of a text reader, with its blank
BLANK_SHARE = 0.2  # of all steps, in which the blank of a text reader is the answer at least
BIMODAL_SHARE = 0.9  # of a mask's pixels that are surely on or surely off


@dataclass(frozen=True)
class Detections:
    """Boxes and the score of each class for each of them, all from one sample."""

    boxes: F64  # left, top, right, bottom; in any unit
    scores: F64
    classes: npt.NDArray[np.int64]


@dataclass(frozen=True)
class BoxReader:
    """Reads detections: from one output, or from one of boxes and one of scores."""

    boxes: str
    scores: str
    rows_first: bool = True  # a row for each box; else a column
    offset: int = 4  # where scores begin beside boxes in one output
    stop: int | None = None  # and where they end, if something else follows
    has_objectness: bool = False
    is_final: bool = False  # box, score, class: overlaps are suppressed already
    has_corners: bool = False  # two corners; else centre and size
    activation: str = ""  # softmax or sigmoid, where scores are logits
    background: int | None = None  # a class that stands for no object

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that it reads."""
        return (self.boxes,) if self.boxes == self.scores else (self.boxes, self.scores)

    def table(self, answers: Answers, row: int) -> tuple[F64, F64]:
        """Boxes as they are given and scores of each class, a row for each box."""
        boxes = answers[self.boxes][row].astype(np.float64)
        scores = boxes if self.scores == self.boxes else answers[self.scores][row].astype(np.float64)
        if not self.rows_first:
            boxes, scores = (boxes.T, boxes.T) if self.scores == self.boxes else (boxes, scores.T)
        boxes = boxes.reshape(len(boxes), -1)[:, :4]
        if self.scores != self.boxes:
            return boxes, self._activated(scores)
        objects = scores[:, 4:5] if self.has_objectness else 1.0
        return boxes, scores[:, self.offset : self.stop] * objects

    def _activated(self, scores: F64) -> F64:
        if self.activation == "softmax":
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        elif self.activation == "sigmoid":
            scores = 1 / (1 + np.exp(-scores.clip(-60, 60)))
        return scores if self.background is None else np.delete(scores, self.background, axis=1)

    def read(self, answers: Answers, row: int) -> Detections:
        """Return the detections of one sample of a batch."""
        if self.is_final:
            table = answers[self.boxes][row].astype(np.float64)
            table = table[table[:, 4] >= MIN_SCORE]
            return Detections(table[:, :4], table[:, 4], np.rint(table[:, 5]).astype(np.int64))
        boxes, table = self.table(answers, row)
        classes = table.argmax(axis=1)
        scores = table[np.arange(len(table)), classes]
        best = np.argsort(-scores, kind="stable")[:MOST_BOXES]
        best = best[scores[best] >= MIN_SCORE]
        corners = boxes[best] if self.has_corners else _corners(boxes[best])
        kept = _suppressed(corners, classes[best])
        return Detections(corners[kept], scores[best][kept], classes[best][kept])

    def compare(self, expected: Answers, found: Answers) -> tuple[float, float]:
        """Return what was found again, and what there was to find, in boxes weighed by their scores."""
        same = total = 0.0
        for row in range(len(expected[self.boxes])):
            ours, theirs = self.read(expected, row), self.read(found, row)
            total += (float(ours.scores.sum()) + float(theirs.scores.sum())) / 2
            same += _matched(ours, theirs)
        return float(same), float(total)


def _corners(boxes: F64) -> F64:
    half = boxes[:, 2:] / 2
    found: F64 = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return found


def _overlap(one: F64, other: F64) -> F64:
    """Intersection over union of each box of one list with each of the other."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = (high - low).clip(0).prod(axis=2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1) for boxes in (one, other)]
    union: F64 = areas[0][:, None] + areas[1][None] - shared
    found: F64 = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found


def _suppressed(boxes: F64, classes: npt.NDArray[np.int64]) -> list[int]:
    """Return the boxes that no better one of their class overlaps; they come best first."""
    overlap = _overlap(boxes, boxes) * (classes[:, None] == classes[None])
    kept: list[int] = []
    for i in range(len(boxes)):
        if not kept or overlap[i, kept].max() <= SAME_OBJECT:
            kept.append(i)
    return kept


def _matched(ours: Detections, theirs: Detections) -> float:
    """Return the weight of boxes that both have, as a mean over the overlaps that count as the same box."""
    if not len(ours.scores) or not len(theirs.scores):
        return 0.0
    overlap = _overlap(ours.boxes, theirs.boxes) * (ours.classes[:, None] == theirs.classes[None])
    weight, free = 0.0, np.ones(len(theirs.scores), bool)
    for i in np.argsort(-ours.scores, kind="stable"):
        j = int((overlap[i] * free).argmax())
        share = float(np.mean(overlap[i, j] >= OVERLAPS)) if free[j] else 0.0
        if share > 0:
            free[j] = False
            weight += share * (ours.scores[i] + theirs.scores[j]) / 2
    return weight


@dataclass(frozen=True)
class TextReader:
    """Reads text from a distribution over characters at each step, the blank among them (CTC)."""

    output: str
    blank: int
    steps_first: bool = False  # steps, then samples

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output that it reads."""
        return (self.output,)

    def read(self, answers: Answers) -> list[npt.NDArray[np.int64]]:
        """Return the characters of each line."""
        best = answers[self.output].argmax(axis=-1)
        lines = best.T if self.steps_first else best
        return [self._line(line) for line in lines]

    def _line(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        first = np.concatenate([[True], steps[1:] != steps[:-1]])
        line: npt.NDArray[np.int64] = steps[first & (steps != self.blank)]
        return line

    def compare(self, expected: Answers, found: Answers) -> tuple[float, float]:
        """Return the characters that are float's, and all of them."""
        same = total = 0
        for ours, theirs in zip(self.read(expected), self.read(found), strict=True):
            longest = max(len(ours), len(theirs))
            same += longest - edit_distance(ours, theirs)
            total += longest
        return float(same), float(total)


def edit_distance(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return the fewest insertions, deletions and replacements that make one sequence the other."""
    numbers = np.arange(len(other) + 1)
    row = numbers.copy()
    for i, symbol in enumerate(one, 1):
        replaced = row[:-1] + (other != symbol)
        begun = np.concatenate([[i], np.minimum(replaced, row[1:] + 1)])
        row = np.minimum.accumulate(begun - numbers) + numbers  # insertions, from left to right
    return int(row[-1])


@dataclass(frozen=True)
class MaskReader:
    """Reads a mask from a map of probabilities."""

    output: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output that it reads."""
        return (self.output,)

    def compare(self, expected: Answers, found: Answers) -> tuple[float, float]:
        """Return the pixels that are on in both, and in either."""
        ours, theirs = expected[self.output] >= 0.5, found[self.output] >= 0.5
        return float(np.count_nonzero(ours & theirs)), float(np.count_nonzero(ours | theirs))


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of a table of scores that stand out; another output has as many rows."""

    output: str
    rows: int

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the output that it reads."""
        return (self.output,)

    def is_read(self, answers: Answers) -> npt.NDArray[np.bool_]:
        """Return which rows stand out."""
        found: npt.NDArray[np.bool_] = np.greater_equal(answers[self.output].max(axis=-1), MIN_SCORE)
        return found

    def compare(self, expected: Answers, found: Answers) -> tuple[float, float]:
        """Return the weight of scores that both have for the same class, and that either has."""
        rows = self.is_read(expected) | self.is_read(found)
        ours, theirs = (one[self.output][rows].astype(np.float64) for one in (expected, found))
        same = ours.argmax(axis=-1) == theirs.argmax(axis=-1)
        best = np.stack([ours.max(axis=-1, initial=0.0), theirs.max(axis=-1, initial=0.0)])
        return float((best.min(axis=0) * same).sum()), float(best.max(axis=0).sum())


Reader: TypeAlias = BoxReader | RowReader | TextReader | MaskReader


def readers_of(answers: Sequence[Answers], inputs: Answers | None = None) -> tuple[Reader, ...]:
    """Return what is read from the outputs of a float model, by some of its answers and one of its inputs."""
    seen: dict[str, list[F64]] = {
        name: [one[name].astype(np.float64) for one in answers]
        for name, first in answers[0].items()
        if first.dtype.kind == "f" and first.size and all(np.isfinite(one[name]).all() for one in answers)
    }
    boxes = _boxes_in_one(seen) or _boxes_beside_scores(seen)
    if boxes is not None:
        return (boxes,)
    if rows := _rows(seen):
        return tuple(RowReader(name, seen[name][0].shape[1]) for name in rows)
    has_ids = any(array.dtype.kind in "iu" and array.ndim == 2 for array in (inputs or {}).values())
    found: list[Reader] = []
    for name, values in seen.items():
        text = None if has_ids else _text(name, values)
        if text is not None:
            found.append(text)
        elif _is_mask(values):
            found.append(MaskReader(name))
    return tuple(found)


def _within(values: Sequence[F64], low: float, high: float) -> bool:
    return all(float(one.min()) >= low and float(one.max()) <= high for one in values)


def _boxes_in_one(seen: Seen) -> BoxReader | None:
    """Return the reader of a table of boxes and scores in one output: YOLO's kinds."""
    for name, values in seen.items():
        if values[0].ndim != 3 or min(values[0].shape[1:]) < 5 or max(values[0].shape[1:]) < FEWEST_ROWS:
            continue
        rows_first = values[0].shape[1] >= values[0].shape[2]
        if len({one.shape[2 if rows_first else 1] for one in values}) > 1:
            continue
        tables = [one.reshape(-1, one.shape[2]) if rows_first else _rows_of_columns(one) for one in values]
        table = np.concatenate(tables)
        boxes, rest = table[:, :4], table[:, 4:]
        if float(boxes.max()) <= 2 or float(rest[:, 0].min()) < 0 or float(rest[:, 0].max()) > 1:
            continue
        corners = _are_corners(boxes)
        if rest.shape[1] == 2 and float(rest[:, 1].max()) > 1 and (rest[:, 1] == np.rint(rest[:, 1])).all():
            return BoxReader(name, name, is_final=True, has_corners=True)
        others = np.flatnonzero((rest.min(axis=0) < 0) | (rest.max(axis=0) > 1))
        stop = 4 + int(others[0]) if len(others) else None  # coefficients of masks may follow
        rest = table[:, 4:stop]
        # A class probability that is high where the score before it is not is conditional on an object.
        unsure = (rest[:, 0] < 0.01) & (rest[:, 1:].max(axis=1, initial=0.0) > 0.1)
        objects = rest.shape[1] > 1 and rows_first and float(np.mean(unsure)) > 0.05
        offset = 5 if objects else 4
        return BoxReader(name, name, rows_first, offset, stop, objects, has_corners=corners)
    return None


def _rows_of_columns(table: F64) -> F64:
    return table.transpose(0, 2, 1).reshape(-1, table.shape[1])


def _are_corners(boxes: F64) -> bool:
    """Whether the second pair is never less than the first: a centre and a size would be, at the far side."""
    return bool((boxes[:, 2:] >= boxes[:, :2] - 1e-6).all())


def _boxes_beside_scores(seen: Seen) -> BoxReader | None:
    """One output of boxes and one of scores for as many rows: SSD and DETR."""
    for name, values in seen.items():
        shape = values[0].shape
        if len(shape) not in (3, 4) or shape[-1] != 4 or (len(shape) == 4 and shape[2] != 1):
            continue
        boxes = np.concatenate([one.reshape(-1, 4) for one in values])
        for other, scores in seen.items():
            if other == name or scores[0].ndim != 3 or not FEWEST_ROWS <= scores[0].shape[1] == shape[1]:
                continue
            if len({one.shape[2] for one in scores}) > 1:
                continue
            table = np.concatenate([one.reshape(-1, one.shape[2]) for one in scores])
            kind, background = _score_kind(table)
            if float(boxes.min()) < 0 and not (boxes[:, 2:] >= 0).all():
                continue  # distances from anchors that are not to be seen
            return BoxReader(
                name, other, has_corners=_are_corners(boxes), activation=kind, background=background
            )
    return None


def _rows(seen: Seen) -> list[str]:
    """Tables of scores beside which another output has as many rows, and lies elsewhere than in 0 … 1."""
    tables = {name: values for name, values in seen.items() if values[0].ndim == 3}
    scores = [
        name
        for name, values in tables.items()
        if values[0].shape[1] >= FEWEST_ROWS and _within(values, 0, 1) and not _is_distribution(values)
    ]
    others = {values[0].shape[1] for values in tables.values() if not _within(values, 0, 1)}
    return [name for name in scores if tables[name][0].shape[1] in others]


def _score_kind(table: F64) -> tuple[str, int | None]:
    """How a table of scores is read, and its class for no object: the answer of most rows, first or last."""
    last = table.shape[1] - 1
    best = table.argmax(axis=1)
    share = {i: float(np.mean(best == i)) for i in (0, last)}
    common = max(share, key=lambda i: share[i])
    if _within([table], 0, 1):
        sums_to_one = bool(np.allclose(table.sum(axis=1), 1, atol=1e-2))
        return "", common if sums_to_one and last > 0 else None
    return ("softmax", common) if last > 0 and share[common] > 0.5 else ("sigmoid", None)


def _text(name: str, values: Sequence[F64]) -> TextReader | None:
    shape = values[0].shape
    if len(shape) != 3 or shape[-1] < FEWEST_CHARACTERS or not _is_distribution(values):
        return None
    steps_first = shape[1] == 1 < shape[0]
    best = np.concatenate([one.argmax(axis=-1).ravel() for one in values])
    share = {i: float(np.mean(best == i)) for i in (0, shape[-1] - 1)}
    blank = max(share, key=lambda i: share[i])
    return TextReader(name, blank, steps_first) if share[blank] >= BLANK_SHARE else None


def _is_distribution(values: Sequence[F64]) -> bool:
    """Whether the last axis sums to one, as it is or as logarithms."""
    if _within(values, 0, 1 + 1e-3):
        return all(bool(np.allclose(one.sum(axis=-1), 1, atol=1e-2)) for one in values)
    logarithms = _within(values, -math.inf, 1e-3)
    return logarithms and all(bool(np.allclose(np.exp(one).sum(axis=-1), 1, atol=1e-2)) for one in values)


def _is_mask(values: Sequence[F64]) -> bool:
    shape = values[0].shape
    is_map = (len(shape) == 4 and shape[1] == 1) or len(shape) == 3
    if not is_map or min(shape[-2:]) < FEWEST_ROWS or not _within(values, 0, 1):
        return False
    flat = np.concatenate([one.ravel() for one in values])
    sure = np.mean((flat < 0.1) | (flat > 0.9))
    return bool(sure > BIMODAL_SHARE and (flat > 0.5).any())
