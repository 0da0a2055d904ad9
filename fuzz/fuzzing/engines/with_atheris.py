"""libFuzzer chooses by the coverage of Octavo's bytecode; the mutations are ours.

It ends the process by itself, so the journal is what counts the executions.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from fuzzing.campaign import Campaign
from fuzzing.harnesses import Harness, load
from fuzzing.mutations.raw import MOST_BYTES


def instrumented(name: str) -> Harness:
    """The harness, with Octavo's modules instrumented; none of them may have been imported before."""
    import atheris  # type: ignore[import-not-found,unused-ignore]

    with atheris.instrument_imports(include=["octavo"], enable_loader_override=False):
        return load(name)


def run(campaign: Campaign, seeds: list[bytes], pool: Path, *, seconds: float, seed: int) -> None:
    """Run until the seconds are over; does not return."""
    import atheris

    for number, data in enumerate(seeds):
        (pool / f"seed-{number}").write_bytes(data)

    def mutate(data: bytes, most: int, chance: int) -> bytes:
        return campaign.harness.mutate(data, Random(chance))[:most]

    flags = [f"-max_total_time={max(1, int(seconds))}", "-timeout=300", f"-seed={seed + 1}", "-verbosity=0",
             f"-max_len={MOST_BYTES}", "-rss_limit_mb=0", "-len_control=0", "-detect_leaks=0"]  # fmt: skip
    atheris.Setup([sys.argv[0], *flags, str(pool)], campaign.execute, custom_mutator=mutate)
    atheris.Fuzz()
