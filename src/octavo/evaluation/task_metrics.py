"""Metrics as pure functions of arrays with a row for each sample.

===========  ==================================================================================
top_k        1 where the label is among the k best classes; of equal scores the lower class wins
spearman     Pearson's correlation of ranks, where equal values share their mean rank
perplexity   ``exp(Σ −log p / Σ tokens)``
token_nll    ``logsumexp(z) − z[target]`` in float64, for each token
divergence   ``Σ p (log p − log q)`` over the vocabulary, in nats, for each token
===========  ==================================================================================
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from octavo.evaluation.task import F64, Array


def top_k(scores: Array, labels: Array, k: int) -> npt.NDArray[np.bool_]:
    """Return whether each label is among the ``k`` best scores of its row."""
    best = np.argsort(-np.asarray(scores, np.float64), axis=1, kind="stable")[:, :k]
    return np.asarray((best == np.asarray(labels)[:, None]).any(axis=1))


def ranks(values: npt.ArrayLike) -> F64:
    """Return ranks from 1; equal values share their mean rank."""
    array = np.asarray(values, np.float64)
    _, place, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts - 1) / 2)[place], np.float64)


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the linear correlation; NaN where one of both does not vary."""
    x, y = (np.asarray(v, np.float64) - np.mean(np.asarray(v, np.float64)) for v in (first, second))
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / norm if norm else math.nan


def spearman(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Return the rank correlation."""
    return pearson(ranks(first), ranks(second))


def token_nll(logits: Array, targets: Array) -> F64:
    """Return the negative log likelihood of each target under a row of logits."""
    z = np.asarray(logits, np.float64)
    highest = z.max(axis=1)
    normaliser = highest + np.log(np.exp(z - highest[:, None]).sum(axis=1))
    return np.asarray(normaliser - z[np.arange(len(targets)), targets])


def log_probabilities(logits: Array) -> F64:
    """Return the logarithm of the softmax of each row, in float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))


def divergence(logits: Array, reference: Array) -> F64:
    """Return the Kullback-Leibler divergence of each row of logits from the reference's, in nats."""
    expected = log_probabilities(reference)
    surplus = expected - log_probabilities(logits)
    return np.asarray((np.exp(expected) * surplus).sum(axis=1))


def perplexity(rows: F64) -> float:
    """Return the perplexity of rows ``(sum of −log p, tokens)``; infinite where exp would overflow."""
    exponent = float(rows[:, 0].sum() / rows[:, 1].sum())
    return math.exp(exponent) if exponent < 700 else math.inf


def sqnr_db(rows: F64) -> float:
    """Return the SQNR in dB of rows ``(signal power, noise power)``.

    It is infinite without noise, minus infinity where the noise is infinite, and NaN where the signal is too.
    """
    signal, noise = (float(total) for total in rows[:, :2].sum(axis=0))
    if noise == 0.0:
        return math.inf
    ratio = max(signal, float(np.finfo(np.float64).tiny)) / noise
    return 10.0 * math.log10(ratio) if ratio else -math.inf
