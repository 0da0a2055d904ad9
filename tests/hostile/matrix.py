"""The matrix of hostile models and doors: every pair ends with a result or with a sentence.

    python tests/hostile/matrix.py                    # every model through every door
    python tests/hostile/matrix.py --cases 'graph/*' --doors quantize,lint
    python tests/hostile/matrix.py --jobs 16 --seconds 500 --done pairs.jsonl   # goes on where it stopped

``make test`` runs a sample of it (``test_doors.py``), in which every model goes through some doors and every
door sees models of each kind. Each pair runs in a child with limits on time, memory and files
(``sandbox.py``).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fnmatch
import gc
import importlib
import json
import multiprocessing
import os
import pkgutil
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import octavo
from hostile.corpus import bounded, corpus
from hostile.doors import DOORS, DRAFTS, SLOW, provide
from hostile.sandbox import Sandbox
from octavo.errors import OctavoError

DOORS_OF_A_SHARE = 8


@dataclasses.dataclass(frozen=True)
class Pair:
    """A hostile model and a door, and what came of it."""

    case: str
    door: str
    result: str = ""  # the type of the error, or "result"
    fault: str = ""  # empty where it ended well


def sample() -> list[Pair]:
    """The pairs of ``make test``: models without bounds through all doors, the others through one each."""
    found = []
    quick = [door for door in DOORS if door not in SLOW]
    cheap = {name for name, _ in bounded(refused=True)}
    for number, case in enumerate(corpus()):
        if case in cheap:
            doors = list(DOORS)
        else:
            doors = [SLOW[number // 25 % len(SLOW)] if number % 25 == 0 else quick[number % len(quick)]]
        found += [Pair(case, door) for door in doors]
    return found


def run_case(case: str, doors: Sequence[str], *, together: bool = False) -> Iterator[Pair]:
    """Send one model through several doors, each in a child of its own, or all in one, which is quicker."""
    made = corpus()[case]()
    content = made if isinstance(made, bytes) else made.SerializeToString()
    here = Path.cwd()
    for some in [list(doors)] if together else [[door] for door in doors]:
        with tempfile.TemporaryDirectory() as folder:
            sandbox = Sandbox(Path(folder).resolve())
            provide(sandbox.given)
            path = sandbox.given / "case.onnx"
            path.write_bytes(content)
            os.chdir(sandbox.given)
            try:
                found = sandbox.gives(lambda: [_entered(case, door, path, sandbox) for door in some])  # noqa: B023
            except AssertionError as error:  # a crash, a limit, or something touched that is not its own
                found = [Pair(case, door, "", str(error)) for door in some]
            finally:
                os.chdir(here)
            yield from found


def _entered(case: str, door: str, path: Path, sandbox: Sandbox) -> Pair:
    """Go through a door, within the child."""
    out = sandbox.out / str(list(DOORS).index(door))
    out.mkdir()
    try:
        value = DOORS[door](path, out)
        return Pair(case, door, f"exit code {value}" if isinstance(value, int) and value else "result")
    except OctavoError as error:
        left = [name.name for name in out.iterdir() if name.suffix in (".onnx", ".stats")]
        if str(error).rstrip()[-1:] not in (".", "?", "!"):
            return Pair(case, door, "", f"no sentence: {error}")
        if set(left) - DRAFTS:
            return Pair(case, door, "", f"{error}, and {left} was left")
        return Pair(case, door, type(error).__name__)
    except Exception as error:
        trace = "".join(traceback.format_exception(error, limit=-12))[-4000:]
        return Pair(case, door, "", f"{type(error).__name__}: {error}\n{trace}")


def load_all() -> None:
    """Import every module of Octavo, so that no child has to: most pairs take less time than the imports."""
    for found in pkgutil.walk_packages(octavo.__path__, "octavo."):
        if not found.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # it needs an extra that is not installed
                importlib.import_module(found.name)
    gc.collect()
    gc.freeze()  # what is loaded stays shared between parent and children


def _case_through(work: tuple[str, list[str]]) -> list[Pair]:
    return list(run_case(*work))


def _known(path: Path | None) -> list[Pair]:
    """The pairs of earlier runs that ended well."""
    if path is None or not path.exists():
        return []
    pairs = [Pair(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return [pair for pair in pairs if not pair.fault]


def _shares(cases: Sequence[str], doors: Sequence[str], known: Sequence[Pair]) -> list[tuple[str, list[str]]]:
    """Some doors for each model, the slow ones first: then all workers end at about the same time."""
    done = {(pair.case, pair.door) for pair in known}
    ordered = sorted(doors, key=lambda door: door not in SLOW)
    parts = [ordered[at : at + DOORS_OF_A_SHARE] for at in range(0, len(ordered), DOORS_OF_A_SHARE)]
    shares = [(case, [door for door in part if (case, door) not in done]) for part in parts for case in cases]
    return [(case, part) for case, part in shares if part]


def main() -> int:
    """Run the matrix, print a row for each door and every fault; returns the number of faults, 99 at most."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", default="*", help="a pattern of names of models")
    parser.add_argument("--doors", default="*", help="patterns of doors, separated by commas")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the clock, for what is begun")
    parser.add_argument(
        "--done", type=Path, help="JSON lines: what is in it is not run again, the rest is added"
    )
    options = parser.parse_args()
    patterns = options.doors.split(",")
    doors = [door for door in DOORS if any(fnmatch.fnmatch(door, pattern) for pattern in patterns)]
    cases = [case for case in corpus() if fnmatch.fnmatch(case, options.cases)]
    begin = time.monotonic()
    load_all()
    pairs = [pair for pair in _known(options.done) if pair.case in cases and pair.door in doors]
    shares = _shares(cases, doors, pairs)
    with contextlib.ExitStack() as stack:
        # A child of a child is forked: daemonic workers may not use multiprocessing themselves, but may fork.
        context = multiprocessing.get_context("fork")
        pool = stack.enter_context(context.Pool(options.jobs, maxtasksperchild=20))
        path = options.done or Path(os.devnull)
        log = stack.enter_context(path.open("a", encoding="utf-8"))
        for done, found in enumerate(pool.imap_unordered(_case_through, shares), 1):
            if done % 100 == 0:
                print(f"{done} of {len(shares)} shares, {time.monotonic() - begin:.0f} s", flush=True)
            pairs += found
            for pair in found:
                log.write(json.dumps(dataclasses.astuple(pair)) + "\n")
                if pair.fault:
                    print(f"{pair.case} through {pair.door}: {pair.fault[-600:]}", flush=True)
            log.flush()
            if time.monotonic() - begin > options.seconds:
                break
    return _table(pairs, len(cases), doors, time.monotonic() - begin)


def _table(pairs: Sequence[Pair], cases: int, doors: Sequence[str], seconds: float) -> int:
    """Print how the pairs ended behind each door; returns the number of faults, 99 at most."""
    rows: dict[str, collections.Counter[str]] = {door: collections.Counter() for door in doors}
    for pair in pairs:
        rows[pair.door]["FAULT" if pair.fault else pair.result] += 1
    for door, counts in rows.items():
        print(f"{door:34} " + ", ".join(f"{name} {number}" for name, number in sorted(counts.items())))
    faults = sum(bool(pair.fault) for pair in pairs)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{cases} models × {len(doors)} doors: {cases * len(doors)} pairs, {len(pairs) - faults} well, "
        f"{faults} not, {cases * len(doors) - len(pairs)} not run, in {seconds:.0f} s, "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time"
    )
    return min(faults, 99)


if __name__ == "__main__":
    sys.exit(main())
