"""Run all that is checked before a change goes in, stage after stage, and print a table of what came of it.

    python scripts/ci.py               # every stage
    python scripts/ci.py docs ray      # some of them
    python scripts/ci.py --list

The tests and the lint come first and decide: where one of them fails nothing else is started. A stage whose
tests fail, and fail again when it is run once more, fails the run. A stage that needs something that can't be
installed here is skipped, with the reason in the table; one that runs out of its time is reported as not
finished. Neither fails the run: both say something about the machine. Needs Python alone; each stage sets up
what it needs by the Makefile.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or ROOT.parent / "shared" / "zoo")
WHOLE = 45.0  # minutes for all stages; one that would begin later is skipped
_CALLERS_OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL")
_GRACE = 10.0  # seconds between the request to end and the end
_NOTE = 120  # characters of a note in the table
_TAIL = 60  # lines of output that are kept, for the reason and for pytest's closing line
_SKIP = re.compile(
    r"^SKIPPED \[(\d+)\] (?:\S+: )?(.+)$"
)  # a line of pytest -rs: how many tests, where, and why
_CLOSING = re.compile(r"\b\d+ (?:passed|failed|errors?)\b.* in [\d.]+s")

PASSED, FAILED, SKIPPED, UNFINISHED = "passed", "FAILED", "skipped", "not finished"
SECOND = "passed 2nd"  # failed, and passed when it was run once more: something in it depends on the moment


@dataclass(frozen=True)
class Stage:
    """Commands that install what is needed, and the command that is judged, with their minutes."""

    name: str
    command: tuple[str, ...]
    minutes: float
    install: tuple[tuple[str, ...], ...] = ()
    lacks: Callable[[], str] = lambda: ""  # what is missing on this machine, without which it is skipped
    decides: bool = False  # nothing else is run where it fails, and it has to finish


@dataclass(frozen=True)
class Outcome:
    """What came of a stage."""

    name: str
    state: str
    seconds: float
    note: str
    skips: Mapping[str, int] = field(default_factory=dict)  # tests that were skipped within it, by the reason


def _no_zoo() -> str:
    return "" if (ZOO / "evaluate.py").is_file() else f"there are no models in {ZOO}"


def make(*words: str) -> tuple[str, ...]:
    """A command of the Makefile."""
    return ("make", "--no-print-directory", *words)


def _no_npm() -> str:
    return "" if shutil.which("npm") else "npm is not installed"


def _no_wheel() -> str:
    return "" if list((ROOT / "dist").glob("*.whl")) else "there is no wheel in dist/"


_INSTALL = (sys.executable, "scripts/test_install.py", "--python",
            f"{sys.version_info.major}.{sys.version_info.minor}", "--needs")  # fmt: skip
_CHROMIUM = """.venv/bin/python tests/browser/chromium.py --find || {
    [ "$(id -u)" = 0 ] && apt-get update -q && apt-get install -q -y chromium </dev/null; }"""

STAGES = (
    Stage("tests", make("test", "PYTEST_ARGS=-m 'not zoo' --ignore=tests/browser"), 40, decides=True),
    Stage("lint", make("lint"), 15, decides=True),
    Stage("docs, built strictly", make("docs"), 5, install=(make(".venv/.docs"),)),
    Stage("tests of the page, in Chromium", make("test-browser"), 5, install=(("sh", "-c", _CHROMIUM),)),
    Stage("wheel and source archive", make("dist"), 4, install=(make(".venv/.dist"),)),
    Stage("tests with the model zoo", make("test-zoo", f"ZOO={ZOO}"), 10, lacks=_no_zoo),
    Stage("tests on a Ray cluster", make("test-ray"), 14, install=(make(".venv/.ray"),)),
    Stage(
        "each benchmark, at its smallest",
        make("bench-smoke", f"ZOO={ZOO}"),
        8,
        install=(make(".venv/.bench"),),
    ),
    Stage("a client of the drop-in", make("test-clients", "CLIENTS=examples"), 5),
    Stage("web clients", make("test-web"), 5, install=(make(".web/.installed"),), lacks=_no_npm),
    Stage("the wheel, newest needs", (*_INSTALL, "newest"), 5, lacks=_no_wheel),
    Stage("the wheel, lowest needs", (*_INSTALL, "lowest"), 5, lacks=_no_wheel),
)


def run_command(
    command: Sequence[str], seconds: float, skips: collections.Counter[str] | None = None
) -> tuple[int | None, list[str]]:
    """Run a command with its output passed on; returns its exit code, None if it was ended, and the tail.

    ``skips`` counts the reasons for which pytest skipped tests.
    """
    tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
    print(f"\n$ {' '.join(command)}", flush=True)
    try:
        child = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=_environment(),
        )  # fmt: skip
    except OSError as error:
        return 127, [f"{command[0]}: {error.strerror}"]
    reader = threading.Thread(target=_pass_on, args=(child.stdout, tail, skips), daemon=True)
    reader.start()
    code: int | None
    try:
        code = child.wait(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(child)
    reader.join(timeout=_GRACE)  # something that was left running may still hold the pipe
    return code, list(tail)


def _environment() -> dict[str, str]:
    """The caller's environment, without what would test another tree or change the commands."""
    kept = {name: value for name, value in os.environ.items() if name not in _CALLERS_OWN}
    return {**kept, "PYTEST_ADDOPTS": f"{kept.get('PYTEST_ADDOPTS', '')} -rs"}


def _pass_on(
    stream: IO[bytes] | None, tail: collections.deque[str], skips: collections.Counter[str] | None
) -> None:
    for line in stream or ():
        text = line.decode("utf-8", "replace")
        with contextlib.suppress(OSError):  # where nobody reads, or a log finds no room, the stages go on
            sys.stdout.write(text)
            sys.stdout.flush()
        if skips is not None and (found := _SKIP.match(text.rstrip())) is not None:
            skips[found[2]] += int(found[1])
        elif text.strip():
            tail.append(text.rstrip())


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command and all that it started: the group of processes is its own."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_stage(stage: Stage, left: float) -> Outcome:
    """Run a stage in its minutes, or in the seconds that are left if these are fewer."""
    begin = time.monotonic()
    skips: collections.Counter[str] = collections.Counter()

    def outcome(state: str, note: str = "") -> Outcome:
        return Outcome(stage.name, state, time.monotonic() - begin, note, skips)

    limit = min(60 * stage.minutes, left)
    if limit <= 0:
        return outcome(UNFINISHED if stage.decides else SKIPPED, f"no time is left of {WHOLE:g} minutes")
    if reason := stage.lacks():
        return outcome(SKIPPED, reason)
    for command in stage.install:
        code, tail = run_command(command, limit - (time.monotonic() - begin))
        if code != 0:
            how = "took too long" if code is None else "failed"
            name = " ".join(" ".join(command).split())[:60]
            return outcome(SKIPPED, f"'{name}' {how}: {tail[-1] if tail else 'no output'}")
    code, tail = run_command(stage.command, limit - (time.monotonic() - begin), skips)
    note = next((line.strip("= ") for line in reversed(tail) if _CLOSING.search(line)), "")
    if code is None:
        return outcome(UNFINISHED, f"ended after {limit / 60:.0f} minutes")
    if code != 0:
        return outcome(FAILED, note or (tail[-1] if tail else f"exit code {code}"))
    return outcome(PASSED, note)


def run_stages(stages: Sequence[Stage]) -> list[Outcome]:
    """Run stages one after the other; once a deciding one has not passed, the others are skipped."""
    end = time.monotonic() + 60 * WHOLE
    found: list[Outcome] = []
    stopped = ""
    for stage in stages:
        if stopped and not stage.decides:
            found.append(Outcome(stage.name, SKIPPED, 0.0, f"{stopped} did not pass"))
            continue
        outcome = run_stage(stage, end - time.monotonic())
        if outcome.state == FAILED and not stage.decides:
            outcome = _again(stage, outcome, end)
        found.append(outcome)
        if stage.decides and outcome.state != PASSED:
            stopped = stopped or stage.name
    return found


def _again(stage: Stage, first: Outcome, end: float) -> Outcome:
    """Run a stage with processes and browsers of its own once more; the table tells that it failed before."""
    second = run_stage(stage, end - time.monotonic())
    if second.state != PASSED:
        return first
    note = f"second run: {second.note}; the first failed: {first.note}"
    return Outcome(stage.name, SECOND, first.seconds + second.seconds, note, second.skips)


def is_failure(stage: Stage, outcome: Outcome) -> bool:
    """Whether a stage fails the run: its tests failed, or it decides and did not pass."""
    return outcome.state == FAILED or (stage.decides and outcome.state != PASSED)


def table(outcomes: Sequence[Outcome]) -> str:
    """The table at the end: stage, state, time, and what to know of it."""
    lines = [f"{'stage':32} {'state':13} {'time':>8}  note"]
    for one in outcomes:
        clock = f"{one.seconds // 60:.0f}:{one.seconds % 60:02.0f}"
        lines.append(f"{one.name:32} {one.state:13} {clock:>8}  {one.note[:_NOTE]}".rstrip())
    if any(one.skips for one in outcomes):
        lines += ["", "tests that were skipped, and why"]
    for one in outcomes:
        lines += [f"{one.name:32} {count:5}  {why[:_NOTE]}" for why, count in sorted(one.skips.items())]
    return "\n".join(lines)


def main() -> int:
    """Run the stages that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stages", nargs="*", help="parts of the names of stages; all where none is given")
    parser.add_argument("--list", action="store_true", help="print the stages")
    options = parser.parse_args()
    chosen = [s for s in STAGES if not options.stages or any(word in s.name for word in options.stages)]
    if options.list or not chosen:
        print(
            "\n".join(
                f"{stage.name:32} {stage.minutes:3g} min  {' '.join(stage.command)}" for stage in STAGES
            )
        )
        return 0 if options.list else 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # whatever the locale of the machine can't show
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    outcomes = run_stages(chosen)
    print("\n" + table(outcomes), flush=True)
    failed = any(is_failure(stage, outcome) for stage, outcome in zip(chosen, outcomes, strict=True))
    if again := [one.name for one in outcomes if one.state == SECOND]:
        print(f"\npassed only when run again, to be looked at: {', '.join(again)}")
    closing = next((one.note for one in outcomes if one.name == STAGES[0].name), "")
    print(f"\n{'failed' if failed else 'all that ran passed'}" + (f"; tests: {closing}" if closing else ""))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
