"""Run every benchmark once at its smallest, to see that it works; its figures mean nothing.

    python benchmarks/smoke.py
    python benchmarks/smoke.py rewrite compare

Models are those that a benchmark builds in code, or the smallest of the zoo (``$OCTAVO_ZOO_DIR``, else
``../shared/zoo``). One that needs something that is not here is skipped with the reason. A benchmark may say
that a promise about speed is not kept: that is no failure here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or HERE.parents[1] / "shared" / "zoo").resolve()
_SECONDS = 120.0  # for one benchmark; each takes 3 to 35
_TAIL = 15  # lines that are shown of one that fails


def no_zoo() -> str:
    """Why benchmarks of the zoo's models can't run."""
    return "" if (ZOO / "evaluate.py").is_file() else f"there are no models in {ZOO}"


def too_large() -> str:
    """Why some are not run here at all."""
    return "the smallest model that it takes is of hundreds of megabytes"


@dataclass(frozen=True)
class Smoke:
    """A benchmark with its smallest arguments; ``{zoo}`` is the folder of models."""

    name: str
    arguments: str
    lacks: Callable[[], str] = lambda: ""


SMOKES = (
    Smoke("rewrite", "--sizes 20 --stock-sizes 20"),
    Smoke("calibration", "--samples 4 --stock-samples 0 --memory-samples 2,4"),
    Smoke("large", "--gb 0.02"),
    Smoke("half", "--models="),
    Smoke("rounding_gpu", "--sizes 16x32"),
    Smoke("placement", "--quick --rules int8 --seconds 0.1 --threads 1"),
    Smoke("speed", "--quick --models mobilenet_v2 --feeds 2 --seconds 0.3 --threads 1"),
    Smoke("dropin", "--zoo {zoo} --models fashion_cnn --formats dynamic", no_zoo),
    Smoke("compare", "--zoo {zoo} --model fashion_cnn --samples 2,4 --runs 1", no_zoo),
    Smoke("search", "--zoo {zoo} --models fashion_cnn --samples 2", no_zoo),
    Smoke("saturation", "--zoo {zoo} --models fashion_cnn --images 1", no_zoo),
    Smoke("zoo", "--zoo {zoo} --models fashion_cnn --limit 16 --calib 2 --speed-seconds 0.5", no_zoo),
    Smoke(
        "accuracy",
        "--zoo {zoo} --models fashion_cnn --variants float,plain --limit 16 --calib 2 --seconds 0.2",
        no_zoo,
    ),
    Smoke("more", "", too_large),
    Smoke("variants", "", too_large),
    Smoke("generative", "", too_large),
)


def run(smoke: Smoke) -> tuple[str, str]:
    """Whether a benchmark passed, failed or was skipped, and what to know of it."""
    if reason := smoke.lacks():
        return "skipped", reason
    command = [sys.executable, f"{smoke.name}.py", *(w.format(zoo=ZOO) for w in smoke.arguments.split())]
    try:
        done = subprocess.run(
            command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "FAILED", f"did not end within {_SECONDS:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    last = lines[-1] if lines else "no output"
    if done.returncode == 0:
        return "passed", ""
    if done.returncode == 1 and any(line.startswith("- FAIL") for line in lines):
        return "passed", "a promise was not kept on so little data, which counts for nothing"
    if done.returncode == 2 and "can't be used here" in last:
        return "skipped", last
    print("\n".join(lines[-_TAIL:]))
    return "FAILED", f"exit code {done.returncode}: {last}"


def main() -> int:
    """Run the benchmarks that are named, or all, and print a line for each; 1 where one fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="(default: all)")
    names = parser.parse_args().names
    begin, states = time.monotonic(), []
    for smoke in SMOKES:
        if not names or smoke.name in names:
            started = time.monotonic()
            state, note = run(smoke)
            states.append(state)
            print(f"{smoke.name:14} {state:8} {time.monotonic() - started:4.0f} s  {note[:150]}", flush=True)
    counts = ", ".join(f"{states.count(one)} {one.lower()}" for one in ("FAILED", "passed", "skipped"))
    print(f"{counts} in {time.monotonic() - begin:.2f}s")
    return int("FAILED" in states)


if __name__ == "__main__":
    sys.exit(main())
