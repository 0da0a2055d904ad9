"""Hypothesis chooses a seed and a chain of mutations, and shortens a chain that makes a finding."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any

from fuzzing.campaign import Campaign
from fuzzing.harnesses import Harness

_LONGEST = 6


def inputs(harness: Harness, seeds: list[bytes]) -> Any:
    """A strategy: a seed after one to six mutations."""
    from hypothesis import strategies

    def mutated(data: bytes, steps: list[int]) -> bytes:
        for step in steps:
            data = harness.mutate(data, Random(step))
        return data

    steps = strategies.lists(strategies.integers(0, 2**32 - 1), min_size=1, max_size=_LONGEST)
    return strategies.builds(mutated, strategies.sampled_from(seeds), steps)


def property_of(harness: Harness, seeds: list[bytes], run: Callable[[bytes], None], examples: int) -> Any:
    """A hypothesis test that runs inputs; what it raises is shortened."""
    from hypothesis import HealthCheck, given, settings

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(inputs(harness, seeds))
    def holds(data: bytes) -> None:
        run(data)

    return holds


def run(campaign: Campaign, seeds: list[bytes], *, seconds: float, seed: int) -> None:
    """Run until the seconds are over; findings are kept, not shortened."""
    import hypothesis

    end = time.monotonic() + seconds

    def execute(data: bytes) -> None:
        if time.monotonic() < end:
            campaign.execute(data)

    while time.monotonic() < end:
        hypothesis.seed(seed)(property_of(campaign.harness, seeds, execute, 200))()
        seed += 1
