"""Language models among the models that are tuned: how they are recognised, judged and timed.

A language model reads token ids ``[batch, tokens]`` and gives logits ``[batch, tokens, vocabulary]`` that do
not change where a later token does; with a cache or without. Its trials are judged by what they predict::

    KL          mean over all positions of Σ p · (log p − log q), p of float and q of the trial, in nats
    perplexity  exp of the mean −log q of the tokens that follow in the text

Both count: KL is what the trial loses on texts as float writes them, the logarithm of the ratio of the
perplexities what it loses on this text; the larger is what was lost. Timed are the reading of a prompt and,
with a cache, the writing of one token after it with the cache that the model itself has made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.data.decoder import Decoder, filled, ids_of
from octavo.errors import OctavoError
from octavo.evaluation.task_metrics import divergence, token_nll
from octavo.evaluation.timing.decoding import prompt_of, runs_of
from octavo.evaluation.timing.latency import Ratio
from octavo.model.runtime.session import InputSpec, Session

Feed = Mapping[str, npt.NDArray[Any]]

HELD_TOKENS = 2048  # that trials are judged on: their mean KL is known to some 5 %
_POSITIONS = 64  # whose logits are in float64 at a time
_CAUSAL = 1e-3  # of the largest logit: what rounding may change where a later token differs


@dataclass(frozen=True)
class TokenSums:
    """Sums over the positions of some samples."""

    positions: int = 0
    kl: float = 0.0
    followed: int = 0  # positions whose next token is in the text
    nll: float = 0.0
    float_nll: float = 0.0

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(
            self.positions + other.positions,
            self.kl + other.kl,
            self.followed + other.followed,
            self.nll + other.nll,
            self.float_nll + other.float_nll,
        )


@dataclass(frozen=True)
class Predictions:
    """How far the predictions of a trial are from float's."""

    kl: float
    perplexity: float
    float_perplexity: float
    judged: int = 0  # tokens that these are means over

    @classmethod
    def of(cls, sums: TokenSums) -> Predictions:
        """Return the means; a model whose logits are not numbers predicts nothing."""
        followed = max(sums.followed, 1)
        found = cls(
            sums.kl / max(sums.positions, 1),
            _exp(sums.nll / followed),
            _exp(sums.float_nll / followed),
            sums.positions,
        )
        return found if math.isfinite(found.kl) else replace(found, kl=math.inf, perplexity=math.inf)

    @property
    def lost(self) -> float:
        """Return what was lost in nats a token: on float's own texts, or on this one if that is more."""
        return max(
            self.kl, math.log(self.perplexity / self.float_perplexity) if self.perplexity else 0.0, 0.0
        )

    def to_dict(self) -> dict[str, float]:
        """Return plain data."""
        return asdict(self)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Pace:
    """How fast a model reads or writes: tokens in a second of one thread, and to float."""

    tokens_per_second: float
    ratio: Ratio


@dataclass(frozen=True)
class TokenSpeeds:
    """The speed of prompts, and that of tokens where there is a cache."""

    prefill: Pace
    decode: Pace | None = None


@dataclass(frozen=True)
class LanguageModel:
    """A model that predicts tokens: its input of ids, its output of logits, and its cache if it has one."""

    specs: tuple[InputSpec, ...]
    ids: str
    logits: str
    decoder: Decoder | None

    @classmethod
    def of(cls, session: Session, sample: Feed) -> LanguageModel | None:
        """Return what a model is by its inputs, outputs and one run of it; None where it is no such model."""
        logits = next((name for name in session.output_names if "logits" in name.lower()), None)
        spec = ids_of(session.inputs) if session.inputs else None
        if logits is None or spec is None or len(spec.shape) != 2 or spec.dtype.kind not in "iu":
            return None
        if "ids" not in spec.name.lower():
            return None
        try:
            filled(np.zeros((1, 1), np.int64), session.inputs)
            is_one = _is_causal(session, spec.name, logits, sample)
        except OctavoError:
            return None
        decoder = Decoder.of(session.inputs, session.output_names)
        return cls(tuple(session.inputs), spec.name, logits, decoder) if is_one else None

    def judged_on(self, samples: Sequence[Feed]) -> list[Feed]:
        """Return as many samples as hold enough tokens."""
        found: list[Feed] = []
        for sample in samples:
            if sum(one[self.ids].size for one in found) >= HELD_TOKENS:
                break
            found.append(sample)
        return found

    def compare(self, expected: Feed, found: Feed, inputs: Feed) -> TokenSums:
        """Return the sums of one sample; padding does not count."""
        ids = np.asarray(inputs[self.ids])
        p, q = expected[self.logits], found[self.logits]
        if p.shape != q.shape:
            return TokenSums(1, math.nan)
        real = _real(inputs, ids)
        sums = TokenSums()
        for row in range(len(ids)):
            places = np.flatnonzero(real[row])
            for start in range(0, len(places), _POSITIONS):
                part = places[start : start + _POSITIONS]
                sums += TokenSums(len(part), float(divergence(q[row, part], p[row, part]).sum()))
                known = part[(part + 1 < ids.shape[1]) & real[row, np.minimum(part + 1, ids.shape[1] - 1)]]
                following = ids[row, known + 1]
                nll, float_nll = (float(token_nll(z[row, known], following).sum()) for z in (q, p))
                sums += TokenSums(followed=len(known), nll=nll, float_nll=float_nll)
        return sums

    def calls(self, sample: Feed) -> Callable[[Session], list[Callable[[], object]]]:
        """Return what is timed of a session: reading a prompt, and writing a token where there is a cache."""
        prompt = prompt_of(sample[self.ids])

        def of(session: Session) -> list[Callable[[], object]]:
            if self.decoder is None:
                feed = filled(prompt, self.specs)
                return [lambda: session.run(feed)]
            return list(runs_of(session, self.decoder, prompt).calls)

        return of

    def speeds(self, sample: Feed, ratios: Sequence[Ratio], seconds: Sequence[float]) -> TokenSpeeds:
        """Return what was timed as tokens in a second."""
        count = prompt_of(sample[self.ids]).shape[1]
        paces = [Pace(n / s, r) for n, s, r in zip((count, 1), seconds, ratios, strict=False)]
        return TokenSpeeds(*paces)


def _real(inputs: Feed, ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which tokens are no padding."""
    mask = next((a for name, a in inputs.items() if "mask" in name.lower() and a.shape == ids.shape), None)
    return np.ones(ids.shape, bool) if mask is None else np.not_equal(mask, 0)


def _is_causal(session: Session, ids: str, logits: str, sample: Feed) -> bool:
    """Whether logits belong to tokens, and predictions stay the same where a later token is another."""
    tokens = np.asarray(sample[ids])
    first = session.run(sample, [logits])[logits]
    if first.ndim != 3 or first.shape[:2] != tokens.shape or first.shape[2] <= int(tokens.max(initial=0)):
        return False
    if tokens.shape[1] < 2:
        return True
    other = tokens.copy()
    other[:, -1] = np.where(tokens[:, -1] > 0, 0, 1)
    again = session.run({**sample, ids: other}, [logits])[logits]
    before, after = (np.asarray(z[:, :-1], np.float32) for z in (first, again))
    largest = float(np.abs(before).max(initial=0.0))
    return bool(np.abs(before - after).max(initial=0.0) <= _CAUSAL * max(largest, 1e-6))
