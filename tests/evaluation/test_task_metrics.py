"""Metrics against plain computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.evaluation import metric_intervals, task_metrics


def test_top_k_counts_labels_among_the_best() -> None:
    scores = np.array([[0.1, 0.9, 0.0], [0.5, 0.2, 0.3], [0.2, 0.3, 0.5]])
    assert task_metrics.top_k(scores, np.array([1, 2, 0]), 1).tolist() == [True, False, False]
    assert task_metrics.top_k(scores, np.array([1, 2, 0]), 2).tolist() == [True, True, False]


def test_of_equal_scores_the_first_class_wins() -> None:
    assert task_metrics.top_k(np.zeros((1, 4)), np.array([0]), 1).tolist() == [True]
    assert task_metrics.top_k(np.zeros((1, 4)), np.array([3]), 1).tolist() == [False]


def test_ranks_of_ties_are_their_mean() -> None:
    assert task_metrics.ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [3.5, 1.0, 3.5, 2.0]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=3, max_size=30))
def test_spearman_is_the_correlation_of_counted_ranks(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs, float).T
    if len(set(x)) < 2 or len(set(y)) < 2:
        assert math.isnan(task_metrics.spearman(x, y))
    else:
        counted = [[sum(b < a for b in v) + 0.5 * sum(b == a for b in v) for a in v] for v in (x, y)]
        assert task_metrics.spearman(x, y) == pytest.approx(np.corrcoef(*counted)[0, 1], abs=1e-12)


def test_token_nll_is_minus_log_softmax() -> None:
    logits = np.array([[1.0, 2.0, 3.0], [1000.0, 0.0, 0.0]])
    want = [-math.log(math.exp(2) / (math.exp(1) + math.exp(2) + math.exp(3))), 0.0]
    assert task_metrics.token_nll(logits, np.array([1, 0])) == pytest.approx(want)


def test_perplexity_of_a_uniform_model_is_the_size_of_its_vocabulary() -> None:
    rows = np.array([[4 * math.log(50), 4.0], [2 * math.log(50), 2.0]])
    assert task_metrics.perplexity(rows) == pytest.approx(50)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (3, 9), (12, 12), (0, 6), (40, 70)])
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    n, k = b + c, min(b, c)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    assert metric_intervals.mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail))


def test_the_interval_of_a_difference_holds_the_truth_nineteen_times_in_twenty() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        first = rng.random(300) < 0.8
        second = np.where(rng.random(300) < 0.1, rng.random(300) < 0.5, first)
        truth = 0.8 - (0.9 * 0.8 + 0.1 * 0.5)
        interval = metric_intervals.share_difference(first, second)
        inside += interval.low <= truth <= interval.high
    assert 0.92 <= inside / 400 <= 0.98


def test_models_that_answer_alike_still_have_an_interval() -> None:
    right = np.ones(1000, bool)
    interval = metric_intervals.share_difference(right, right)
    assert interval.low < 0 < interval.high
    assert interval.p_value == 1.0


def test_wilson_contains_the_share_and_stays_within_zero_and_one() -> None:
    for right in (np.ones(20, bool), np.zeros(20, bool), np.arange(20) < 13):
        interval = metric_intervals.share(right)
        assert 0 <= interval.low <= right.mean() <= interval.high <= 1


def test_paired_resampling_is_narrower_than_unpaired_and_reproducible() -> None:
    rng = np.random.default_rng(3)
    base = rng.standard_normal((200, 1))
    other = base + 0.01 * rng.standard_normal((200, 1))

    def mean(rows: np.ndarray) -> float:
        return float(rows[:, 0].mean())

    first = metric_intervals.resampled_difference(mean, base, other, 300)
    assert first == metric_intervals.resampled_difference(mean, base, other, 300)
    alone = metric_intervals.resampled(mean, base, 300)
    assert first.high - first.low < 0.1 * (alone.high - alone.low)
