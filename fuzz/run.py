"""Fuzz what Octavo reads: ``python fuzz/run.py HARNESS,…|all [--seconds S] [--jobs N] [--engine E]``.

With ``--executions`` everything runs in this process, one harness after the other: for a quick look. With
``--input FILE`` one input is run once more, and the error shown as it comes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
FINDINGS = FUZZ / "findings"
sys.path[:0] = [str(FUZZ), str(FUZZ.parent / "src")]

from fuzzing import guard, report  # noqa: E402
from fuzzing.campaign import Campaign  # noqa: E402
from fuzzing.driver import Driver, Tally  # noqa: E402
from fuzzing.engines import own  # noqa: E402
from fuzzing.harnesses import NAMES, corpus, load, present  # noqa: E402
from fuzzing.lines import Lines  # noqa: E402

ENGINES = ("auto", "atheris", "hypothesis", "random")


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where something was found, 2 where a harness has run nothing."""
    options = _parser().parse_args(arguments)
    names = present() if options.harness == "all" else tuple(options.harness.split(","))
    if unknown := [name for name in names if name not in NAMES]:
        _say(f"there is no harness {unknown[0]}: {', '.join(NAMES)}, or all")
        return 2
    if options.input is not None:
        corpus(names[0])
        guard.watched(load(names[0]).one, options.input.read_bytes(), load(names[0]).SECONDS)
        _say("no finding")
        return 0
    engine = _engine(options.engine)
    if options.executions is not None:
        engine, tallies = "random", _here(names, options.executions, options.seed)
    else:
        driver = Driver(
            names, engine, options.seconds, options.jobs, options.seed,
            lambda found: report.write_finding(found, FINDINGS),
        )  # fmt: skip
        driver.run(_say)
        tallies = driver.tallies
    return _finish(tallies, engine, options)


def _finish(tallies: dict[str, Tally], engine: str, options: argparse.Namespace) -> int:
    _say(report.table(tallies))
    _say(report.whole(tallies))
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        content = report.plain(tallies, engine=engine, seconds=options.seconds, jobs=options.jobs)
        options.out.write_text(json.dumps(content, indent=1))
    for path in report.write_findings(tallies, FINDINGS):
        _say(f"finding: {path}")
    found = sum(row["findings"] for row in report.rows(tallies))
    idle = [name for name, tally in tallies.items() if not tally.executions]
    if idle:
        _say(f"no input was run by {', '.join(idle)}; give more --seconds")
    _say(f"{found} findings")
    return 1 if found else 2 if idle else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("harness", help=f"{', '.join(NAMES)}, some of them with commas between, or all")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the clock, for everything together")
    parser.add_argument("--jobs", type=int, default=1, help="workers at once")
    parser.add_argument(
        "--engine", choices=ENGINES, default="auto", help="auto: atheris if installed, else random"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executions", type=int, help="so many of each, in this process")
    parser.add_argument("--out", type=Path, help="a JSON file for figures and findings")
    parser.add_argument("--input", type=Path, help="run this one input")
    return parser


def _engine(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "atheris" if importlib.util.find_spec("atheris") is not None else "random"


SLOW = ("quantize", "choose", "compare", "weight_only")  # a model is quantized or run for each input


def _here(names: tuple[str, ...], executions: int, seed: int) -> dict[str, Tally]:
    """A few of each harness in this process; a tenth as many where each quantizes a model."""
    tallies = {}
    lines = Lines()
    lines.start()
    try:
        for name in names:
            lines.reset()
            campaign, tally = Campaign(name, load(name), lines=lines), Tally(starts=1)
            begun, used = time.monotonic(), time.process_time()
            most = max(1, executions // 10) if name in SLOW else executions
            own.run(campaign, corpus(name), seed=seed, lines=lines, executions=most)
            tally.executions = campaign.executions
            tally.given, tally.cpu = time.monotonic() - begun, time.process_time() - used
            tally.add_lines(lines.plain())
            for found in campaign.found.values():
                tally.keep(found)
            tallies[name] = tally
    finally:
        guard.remove_folder()
    return tallies


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
