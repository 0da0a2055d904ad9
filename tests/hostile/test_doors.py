"""Hostile models through every way by which a model gets in: a sample of the matrix (``matrix.py``)."""

from __future__ import annotations

import itertools
import os

import pytest

from hostile.corpus import corpus
from hostile.doors import DOORS
from hostile.matrix import run_case, sample

PAIRS = sample()
PARTS = 8  # tests, so that workers share the pairs


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a pair runs in a forked child")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_model_ends_in_a_result_or_a_sentence_behind_every_door(part: int) -> None:
    mine = [pair for pair in PAIRS if list(corpus()).index(pair.case) % PARTS == part]
    faults, count = [], 0
    for case, pairs in itertools.groupby(mine, key=lambda pair: pair.case):
        for found in run_case(case, [pair.door for pair in pairs], together=True):
            count += 1
            if found.fault:
                faults.append(f"{found.case} through {found.door}: {found.fault}")
    print(f"hostile models through doors, part {part + 1} of {PARTS}: {count} pairs, {len(faults)} not well")
    assert not faults, "\n".join(faults)


def test_the_sample_has_every_model_and_every_door() -> None:
    assert {pair.case for pair in PAIRS} == set(corpus())
    assert {pair.door for pair in PAIRS} == set(DOORS)
