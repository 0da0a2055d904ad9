"""How close a variant of a part is to float, in the figure that says most about what the part gives.

==========  ===================================================================================
``kl``      of logits: the mean of ``Σ p · log(p / q)`` over all positions, in nats, with the
            share of positions in which both models rank the same token first
``cosine``  of embeddings and hidden states: the mean over vectors
``sqnr``    of anything else: ``10 · log10(Σ x² / Σ (x − y)²)`` of the worst output
``words``   of models of speech, and ``right`` of classifiers: see :mod:`octavo.folders.tasks`
==========  ===================================================================================

Every position is computed from what the float pipeline has seen before it (teacher forcing). Padding, where a
mask says so, is not counted. An encoder whose states a decoder reads is judged by that decoder's logits too:
the float decoder reads the variant's states, and predicts each token of the text that float has written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelError
from octavo.folders.parts import STATES, Part, Role
from octavo.folders.samples import Array, Sample
from octavo.folders.variants import Floor
from octavo.model.graph.merging import CACHE_BRANCH
from octavo.model.runtime.session import Session
from octavo.tuning.fidelity import judged, outputs_of, tallies

F64 = npt.NDArray[np.float64]
LOGITS = "logits"
MIN_VECTOR = 8  # values; a shorter last axis holds scores or boxes, whose direction says little
_VECTORS = (Role.TEXT, Role.VISION, Role.PAIR, Role.AUDIO, Role.EMBEDDING)
_ROWS = 1024  # of logits that are compared at once, as a vocabulary is long


@dataclass(frozen=True)
class Figure:
    """One measured distance from float."""

    kind: str  # kl, cosine, sqnr, words or right
    value: float
    agreement: float | None = None  # of logits: the share of positions with the same first token
    is_answer: bool = False  # logits of a text that is read off an encoder
    float_value: float | None = None  # of words and right answers; None: words are compared with float's
    count: int = 0  # of words or samples

    def holds(self, floor: Floor) -> bool:
        """Whether a variant with this figure may be written."""
        match self.kind:
            case "kl":
                return self.value <= self._most_kl(floor)
            case "cosine":
                return self.value >= floor.cosine
            case "words" | "right":
                return round(self._lost * self.count) <= self._most_lost(floor)
        return self.value >= floor.sqnr_db

    def limit(self, floor: Floor) -> str:
        """What the floor requires of this figure."""
        match self.kind:
            case "kl":
                return f"at most {self._most_kl(floor):g} nats"
            case "cosine":
                return f"at least {floor.cosine:g}"
            case "words" | "right":
                unit = "word" if self.kind == "words" else "sample"
                most = int(self._most_lost(floor))
                return f"at most {most} {unit}{'s' * (most != 1)} of {self.count}"
        return f"at least {floor.sqnr_db:g} dB"

    @property
    def is_of_task(self) -> bool:
        """Whether it says what the task loses, and not how far numbers are from float's."""
        return self.kind in ("words", "right")

    def _most_kl(self, floor: Floor) -> float:
        return min(floor.kl, floor.answer_kl) if self.is_answer else floor.kl

    @property
    def _lost(self) -> float:
        """The share of words or samples that float has right and the variant has not."""
        beside = self.float_value or 0.0
        return self.value - beside if self.kind == "words" else beside - self.value

    def _most_lost(self, floor: Floor) -> float:
        """How many words or samples may be lost."""
        if self.float_value is None:
            share = floor.changed
        else:
            right = 1 - self.float_value if self.kind == "words" else self.float_value
            share = floor.lost.amount * right if floor.lost.relative else floor.lost.amount
        return max(floor.always, share * self.count + 1e-9)

    def __str__(self) -> str:
        match self.kind:
            case "kl":
                same = "" if self.agreement is None else f", {100 * self.agreement:.1f} % same"
                return f"KL {self.value:.4f}{same}"
            case "cosine":
                return f"cosine {self.value:.5f}"
            case "words" if self.float_value is None:
                return f"{100 * self.value:.1f} % of {self.count} words unlike float's"
            case "words":
                return f"WER {100 * self.value:.1f} %, float {100 * (self.float_value or 0):.1f} %"
            case "right":
                return f"{100 * self.value:.1f} % right, float {100 * (self.float_value or 0):.1f} %"
        if math.isinf(self.value):
            return "exact" if self.value > 0 else "an output of another shape than float's"
        return f"{self.value:.1f} dB"


@dataclass(frozen=True)
class Reader:
    """The float decoder that reads an encoder, with a whole text for each of the encoder's feeds."""

    part: Part
    feeds: Sequence[Sample]


class Reference:
    """The answers of a float part, which variants are compared with."""

    def __init__(
        self, part: Part, feeds: Sequence[Sample], threads: int | None, reader: Reader | None = None
    ) -> None:
        self.part, self.feeds, self.threads, self.reader = part, feeds, threads, reader
        self.answers = self._all_answers(part.path)
        floats = [name for name, value in self.answers[0].items() if value.dtype.kind == "f" and value.size]
        self.logits = LOGITS if LOGITS in floats else None
        self.vectors = [
            name
            for name in floats
            if part.role in _VECTORS and name != self.logits and _is_vector(self.answers[0][name])
        ]
        self.others = [name for name in floats if name != self.logits and name not in self.vectors]

    def _all_answers(self, path: Path) -> list[dict[str, Array]]:
        """The outputs for each feed, without the cache of a decoder, whose errors show in its logits."""
        session = Session.open(path, threads=self.threads)
        names = [name for name in self.part.outputs if not (self._generates and name.startswith("present"))]
        answers = [
            {name: value for name, value in session.run(feed, names).items() if isinstance(value, np.ndarray)}
            for feed in self.feeds
        ]
        if self.reader is not None:
            decoder = Session.open(self.reader.part.path, threads=self.threads)
            for states, feed in zip(answers, self.reader.feeds, strict=True):
                given = {name: states.get(STATES.get(name, name), value) for name, value in feed.items()}
                states |= decoder.run(given, [LOGITS])
        return answers

    @property
    def timed_feed(self) -> Sample:
        """The last feed, of a decoder one that has a cache."""
        return next((f for f in reversed(self.feeds) if np.all(f.get(CACHE_BRANCH, True))), self.feeds[-1])

    @property
    def _generates(self) -> bool:
        return self.part.role.generates

    def figures(self, path: Path) -> tuple[Figure, ...]:
        """Run a variant, and return how close it is: a figure for each kind of output that the part has."""
        answers = self._all_answers(path)
        for found in answers:
            for name, value in found.items():
                if value.dtype.kind == "f" and not np.all(np.isfinite(value.astype(np.float32))):
                    raise ModelError(f"its output {name} holds NaN or infinity")
        rows = list(zip(self.feeds, self.answers, answers, strict=True))
        figures = []
        if self.logits is not None:
            is_answer = self.reader is not None or (self._generates and self.part.reads_encoder)
            figures.append(replace(_divergence(rows, self.logits), is_answer=is_answer))
        if self.vectors:
            cosines = [_cosines(x[name], y[name], f) for f, x, y in rows for name in self.vectors]
            figures.append(Figure("cosine", float(np.concatenate(cosines).mean())))
        if self.others:
            figures.append(_worst(rows, self.others))
        if not figures:
            raise ModelError("it has no float output to compare with")
        return tuple(figures)


_Rows = list[tuple[Sample, dict[str, Array], dict[str, Array]]]


def _is_vector(value: Array) -> bool:
    return value.ndim >= 2 and value.shape[-1] >= MIN_VECTOR


def _kept(value: Array, feed: Mapping[str, Array]) -> F64:
    """The rows along the last axis, less those of padding."""
    mask = feed.get("attention_mask")
    if mask is not None and mask.shape == value.shape[:2]:
        value = value[mask.astype(bool)]
    return np.asarray(value, np.float64).reshape(-1, value.shape[-1])


def _cosines(reference: Array, other: Array, feed: Mapping[str, Array]) -> F64:
    x, y = _kept(reference, feed), _kept(other, feed)
    sizes = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    same = (x == y).all(axis=1)
    return np.where(same, 1.0, (x * y).sum(axis=1) / np.maximum(sizes, np.finfo(np.float64).tiny))


def _divergence(rows: _Rows, name: str) -> Figure:
    total = agreed = count = 0.0
    for feed, expected, found in rows:
        x, y = _kept(expected[name], feed), _kept(found[name], feed)
        for first in range(0, len(x), _ROWS):
            p, q = (_log_softmax(one[first : first + _ROWS]) for one in (x, y))
            total += float((np.exp(p) * (p - q)).sum())
            agreed += float((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        count += len(x)
    return Figure("kl", max(total / count, 0.0), agreed / count)


def _log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _worst(rows: _Rows, names: Sequence[str]) -> Figure:
    expected = [{name: x[name] for name in names} for _, x, _ in rows]
    found = [{name: y[name] for name in names} for _, _, y in rows]
    outputs = outputs_of(expected, rows[0][0])
    sums = [tallies(outputs, x, y, feed) for (feed, _, _), x, y in zip(rows, expected, found, strict=True)]
    return Figure("sqnr", judged(outputs, sums).sqnr_db)
