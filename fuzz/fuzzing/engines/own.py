"""A loop of our own: mutate an input of the pool, keep it where it reached new lines. Needs no package."""

from __future__ import annotations

import time
from math import inf
from random import Random

from fuzzing.campaign import Campaign, Pool
from fuzzing.lines import Lines

_SYNC = 10.0  # seconds between looks at what other workers have found
_RECENT = 32


def run(
    campaign: Campaign,
    seeds: list[bytes],
    *,
    seed: int,
    lines: Lines,
    seconds: float | None = None,
    budget: float | None = None,
    executions: int | None = None,
    pool: Pool | None = None,
) -> None:
    """Run until the seconds, the processor time or the executions are over; all seeds come first."""
    chance = Random(seed)
    end = time.monotonic() + seconds if seconds is not None else inf
    last = time.process_time() + budget if budget is not None else inf
    most = executions if executions is not None else inf
    known = list(seeds) + (pool.news() if pool is not None else [])
    for data in seeds:
        campaign.execute(data)
    lines.fresh()
    synced = time.monotonic()
    while time.monotonic() < end and time.process_time() < last and campaign.executions < most:
        data = campaign.harness.mutate(_parent(known, chance), chance)
        campaign.execute(data)
        if lines.fresh():
            known.append(data)
            if pool is not None:
                pool.add(data)
        if pool is not None and time.monotonic() - synced > _SYNC:
            known += pool.news()
            synced = time.monotonic()


def _parent(known: list[bytes], chance: Random) -> bytes:
    """Any input that is known, those found last more often."""
    return chance.choice(known[-_RECENT:] if chance.random() < 0.4 else known)
