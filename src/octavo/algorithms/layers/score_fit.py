"""Weights of a layer of scores fitted to float's probabilities: arrays in, arrays out.

A layer gives the scores ``z`` of a place (a step of a text, a position of a feature map), and a Softmax makes
probabilities ``q`` of them, where the float model has ``p``. With the features ``h`` that the layer reads in
the quantized model, a change ``D`` of its weights makes the scores ``z + D h``. It minimizes::

    Σ KL(p, q(z + D h)) + r/2 · |D|²

A place counts as much as its probabilities can change: ``p (1 - p)``, the derivative of the function. Where
the answer is certain nothing is corrected, where two classes are close even a small shift is.

The problem is convex. The steps of Newton's method, class by class, use a bound of the curvature between
``q`` and ``p``, so that they do not go too far. ``r`` is what the features of so many undecided places weigh;
it is chosen by samples that are left out, and where none of the choices brings these closer to float nothing
is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from octavo.algorithms.layers.error_feedback import Grid, fed_back, upper_factor

F64 = npt.NDArray[np.float64]

RIDGES = (1000.0, 300.0, 100.0, 30.0, 10.0)  # undecided places that say no change; the first that is best
FOLDS = 4  # parts of the samples that are left out in turn
LEAST_GAIN = 0.005  # of the loss of samples that are left out
MOST_PLACES = 1024  # of a sample
MOST_IN_ALL = 1 << 15
MOST_CLASSES = 64
MOST_FEATURES = 128  # principal ones; in the others too little differs to be fitted
_DOUBT = 0.01  # p (1 - p) of some class of a place that is undecided, at least
_LEAST_DOUBT = 0.01  # of all places of a sample, for a class to be kept
_LEAST_EVIDENCE = 2.0  # of all samples, for a class to be fitted
_STEPS = 8  # of Newton's method; each halves the distance to the minimum at least
_OPEN = 1e-3  # p (1 - p) of a class at a place that adds to the curvature, at least
_OTHERS = 0.1  # what all places weigh beside the undecided ones when weights are rounded
_DAMPING = 0.1  # of the mean square of the features, which keeps the factorization stable
_TINY = 1e-12


def probabilities(scores: F64) -> F64:
    """Return what Softmax makes of the scores of each row."""
    found = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _doubt(p: F64, q: F64) -> F64:
    """Return the largest ``x (1 - x)`` between two probabilities: a bound of the curvature on the way."""
    both = np.maximum(p * (1 - p), q * (1 - q))
    return np.where((p - 0.5) * (q - 0.5) < 0, 0.25, both)


@dataclass
class Places:
    """The undecided places of some samples, and the classes in question there."""

    features: list[F64] = field(default_factory=list)  # [place, feature], for each sample
    classes: list[npt.NDArray[np.int64]] = field(default_factory=list)
    wanted: list[F64] = field(default_factory=list)  # [place, class]
    found: list[F64] = field(default_factory=list)

    def add(self, features: F64, wanted: F64, found: F64) -> None:
        """Add a sample: what the quantized layer reads, float's scores and its own, a row for each place."""
        p, q = (probabilities(scores) for scores in (wanted, found))
        rows = np.flatnonzero(np.maximum(p * (1 - p), q * (1 - q)).max(axis=1) >= _DOUBT)
        rows = rows[:: -(-len(rows) // MOST_PLACES)] if len(rows) else rows
        p, q = p[rows], q[rows]
        kept = np.flatnonzero(_doubt(p, q).sum(axis=0) >= _LEAST_DOUBT)
        self.features.append(features[rows])
        self.classes.append(kept)
        self.wanted.append(p[:, kept])
        self.found.append(q[:, kept])

    def problem(self) -> Problem | None:
        """Return all places with the classes that can be fitted; None where there are none."""
        evidence: dict[int, float] = {}
        for kept, p, q in zip(self.classes, self.wanted, self.found, strict=True):
            for one, amount in zip(kept.tolist(), _doubt(p, q).sum(axis=0).tolist(), strict=True):
                evidence[one] = evidence.get(one, 0.0) + amount
        fitted = [one for one, amount in evidence.items() if amount >= _LEAST_EVIDENCE]
        fitted = sorted(sorted(fitted, key=lambda one: -evidence[one])[:MOST_CLASSES])
        if not fitted:
            return None
        column = {one: i for i, one in enumerate(fitted)}
        wanted, found = (self._joined(parts, column) for parts in (self.wanted, self.found))
        features = np.concatenate(self.features).astype(np.float64)
        samples = np.repeat(np.arange(len(self.features)), [len(one) for one in self.features])
        each = max(-(-len(samples) // MOST_IN_ALL), 1)
        return Problem(
            np.array(fitted),
            features[::each],
            wanted[::each],
            found[::each],
            samples[::each],
        )

    def _joined(self, parts: Sequence[F64], column: dict[int, int]) -> F64:
        joined = []
        for kept, part in zip(self.classes, parts, strict=True):
            full = np.zeros((len(part), len(column)))
            own = [i for i, one in enumerate(kept.tolist()) if one in column]
            full[:, [column[int(kept[i])] for i in own]] = part[:, own]
            joined.append(full)
        return np.concatenate(joined)


@dataclass(frozen=True)
class Change:
    """New weights of some classes: what is added to float's, to each output and to its bias."""

    classes: npt.NDArray[np.int64]
    weights: F64  # [class, feature]
    bias: F64
    before: float  # nats that are lost at a place, on samples that were left out
    after: float


@dataclass(frozen=True)
class Problem:
    """The places of all samples, with the same classes; ``samples`` says which each place is of."""

    classes: npt.NDArray[np.int64]
    features: F64
    wanted: F64
    found: F64
    samples: npt.NDArray[np.int64]

    def change(self) -> Change | None:
        """Return the change that brings left-out samples closest to float; None where none does."""
        scale = float(np.sqrt(np.mean(self.features**2)))
        if not scale > 0 or len(np.unique(self.samples)) < FOLDS:
            return None
        basis = self._basis() / scale
        inputs = np.hstack([self.features @ basis, np.ones((len(self.features), 1))])
        scores = _scores(self.found)
        folds = list(self._folds())
        solvers = [_Solver(self, inputs, scores, kept) for kept, _ in folds]
        least = before = sum(self.loss(scores, rows) for _, rows in folds)
        chosen: float | None = None
        for ridge in RIDGES:
            after = 0.0
            for solver, (_, rows) in zip(solvers, folds, strict=True):
                fitted = solver.minimum(ridge)
                after += self.loss(scores + _moved(inputs @ fitted.T), rows)
            if not after < least:
                break
            least, chosen = after, ridge
        if chosen is None or not least < (1 - LEAST_GAIN) * before:
            return None
        every, count = np.ones(len(inputs), bool), len(inputs)
        whole = _Solver(self, inputs, scores, every).minimum(chosen)
        if not self.loss(scores + _moved(inputs @ whole.T), every) < self.loss(scores, every):
            return None
        return Change(self.classes, whole[:, :-1] @ basis.T, whole[:, -1], before / count, least / count)

    def rounded(self, change: Change, rows: F64, grid: Grid) -> tuple[F64, F64] | None:
        """Return changed weights as points of a grid, with the bias that makes up for what rounding shifts.

        ``rows`` are all weights as they are stored, ``[output, feature]``. A rounding error is fed back to
        later columns by its effect on the scores, above all where they are undecided. None where rounding
        leaves nothing of the gain.
        """
        wanted = rows[self.classes] + change.weights
        scores = _scores(self.found)
        target = probabilities(scores + _moved(self.features @ change.weights.T + change.bias))
        doubt = _doubt(self.wanted, target[:, : len(self.classes)])
        stored, bias = np.empty_like(wanted), change.bias.copy()
        others = self.features.T @ self.features / len(self.features) * _OTHERS
        others += np.eye(len(others)) * (_DAMPING * np.trace(others) / len(others))
        for i in range(len(self.classes)):
            weighted = self.features * doubt[:, i : i + 1]
            gram = weighted.T @ self.features + float(doubt[:, i].sum()) * others
            one = Grid(_of(grid.scale, self.classes[i]), _of(grid.zero, self.classes[i]), grid.low, grid.high)
            points, _ = fed_back(wanted[None, i : i + 1], one, upper_factor(gram[None]))
            stored[i] = points[0, 0]
            bias[i] += weighted.sum(axis=0) @ (wanted[i] - stored[i]) / max(float(doubt[:, i].sum()), _TINY)
        moved = self.features @ (stored - rows[self.classes]).T + bias
        every = np.ones(len(moved), bool)
        is_closer = self.loss(scores + _moved(moved), every) < self.loss(scores, every)
        return (stored, bias) if is_closer else None

    def loss(self, scores: F64, rows: npt.NDArray[np.bool_]) -> float:
        """Return the nats that are lost at some places."""
        p, q = _whole(self.wanted[rows]), probabilities(scores[rows])
        return float(np.sum(p * (np.log(np.maximum(p, _TINY)) - np.log(np.maximum(q, _TINY)))))

    def _basis(self) -> F64:
        """Return the directions in which features differ most, as columns."""
        size = self.features.shape[1]
        if size <= MOST_FEATURES:
            return np.eye(size)
        vectors: F64 = np.linalg.eigh(self.features.T @ self.features)[1]
        return vectors[:, -MOST_FEATURES:]

    def _folds(self) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
        """Yield the places to fit and those left out: one part of the samples after the other."""
        part = self.samples * FOLDS // (int(self.samples.max()) + 1)
        for one in range(FOLDS):
            yield part != one, part == one


def _whole(given: F64) -> F64:
    """Return probabilities of classes with that of all others together."""
    return np.hstack([given, np.maximum(1 - given.sum(axis=1, keepdims=True), 0.0)])


def _scores(given: F64) -> F64:
    """Return scores that have these probabilities, of classes and of all others together."""
    return np.asarray(np.log(np.maximum(_whole(given), _TINY)))


def _moved(shifts: F64) -> F64:
    """Return shifts of the classes' scores with one for all others, which stay."""
    return np.hstack([shifts, np.zeros((len(shifts), 1))])


class _Solver:
    """Newton's method on some places, with one factorization for all ridges."""

    def __init__(self, problem: Problem, inputs: F64, scores: F64, rows: npt.NDArray[np.bool_]) -> None:
        self.inputs, self.scores = inputs[rows], scores[rows]
        self.wanted = problem.wanted[rows]
        # The curvature of a Softmax is that of its classes one by one, twice at most.
        doubt = 2.0 * _doubt(self.wanted, problem.found[rows])
        self._factors = []
        for i in range(doubt.shape[1]):
            open_ = doubt[:, i] >= _OPEN
            gram = (self.inputs[open_] * doubt[open_, i : i + 1]).T @ self.inputs[open_]
            self._factors.append(np.linalg.eigh(gram))

    def minimum(self, ridge: float) -> F64:
        """Return the change ``[class, input]`` that minimizes the loss."""
        change = np.zeros((self.wanted.shape[1], self.inputs.shape[1]))
        for _ in range(_STEPS):
            moved = _moved(self.inputs @ change.T)
            q = probabilities(self.scores + moved)[:, :-1]
            gradient = (q - self.wanted).T @ self.inputs + ridge * change
            for i, (values, vectors) in enumerate(self._factors):
                change[i] -= vectors @ ((vectors.T @ gradient[i]) / (np.maximum(values, 0.0) + ridge))
        return change


def _of(part: npt.NDArray[np.floating], index: int) -> npt.NDArray[np.floating]:
    """Return the scale or zero point of one output, as it broadcasts to its row."""
    flat = np.asarray(part, np.float64).reshape(-1)
    return flat[[index if flat.size > 1 else 0]].reshape(1, 1, 1)
