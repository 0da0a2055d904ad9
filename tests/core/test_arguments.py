"""Arguments of the wrong kind get a sentence, before any work is done."""

from __future__ import annotations

from typing import Any

import builders
import numpy as np
import pytest

import octavo
from octavo.core.arguments import check_arguments
from octavo.core.cpu import MAX_THREADS
from octavo.errors import RecipeError


@pytest.mark.parametrize(
    ("keyword", "value", "words"),
    [
        ("effort", 3, "effort must be a name"),
        ("samples", 2.5, "samples must be a whole number"),
        ("threads", "2", "threads must be a whole number"),
        ("threads", MAX_THREADS + 1, "out of range"),
        ("exclude", [3], "exclude must be a pattern"),
        ("op_types", ["Conv", 7], "op_types must be a name"),
        ("steps", 3, "steps must be a name"),
        ("method", 3, "method must be a method"),
        ("symmetric", "maybe", "True or False"),
        ("layers", 3, "layers must be a dict"),
        ("bits", "four", "bits must be a number"),
        ("plan", 3, "plan must be a Plan"),
        ("stats", 3, "stats must be Stats"),
        ("task", 3, "task must be a TaskCheck"),
        ("output", 3, "output must be the path"),
        ("progress", 3, "progress must be a function"),
        ("engine", 3, "engine is one of"),
        ("target", octavo.W8A8, "target must be a Target"),
        ("min_sqnr", "20 dB", "'20 dB' is not a number"),
        ("min_speed", -1, "is not a speed"),
        ("max_size", 0, "allows no weights"),
        ("time_limit", -3, "is not a time"),
    ],
)
def test_a_keyword_of_the_wrong_kind_is_named(keyword: str, value: Any, words: str) -> None:
    data = [{"x": np.ones((1, 4), np.float32)}] * 4
    with pytest.raises(RecipeError, match=words):
        octavo.quantize(builders.chain(2), data, **{keyword: value})


def test_patterns_that_can_be_read_once_are_not_used_up_by_the_check() -> None:
    patterns = iter(["head"])
    check_arguments(exclude=patterns)
    assert list(patterns) == ["head"]


def test_a_scale_of_labelled_data_is_above_zero() -> None:
    with pytest.raises(RecipeError, match="not above 0"):
        octavo.evaluate(builders.chain(2), (np.ones((4, 4), np.float32), [0, 1, 0, 1]), scale=0)
