"""Each placement rule for ONNX Runtime's CPU, measured again: which form of a small graph is the faster.

    python benchmarks/placement.py
    python benchmarks/placement.py --quick --threads 1,4,16
    python benchmarks/placement.py --rules Softmax,stem

A rule (`_rules.py`) claims that one form of a graph is at least so many times as fast as another. Both
and the float graph take turns in one process, which is started afresh for each rule. With several runs
(``--runs``) a rule is called broken only if it misses by more than a tenth in each of them: then the
datasheet in ``octavo/targets`` is to be corrected. Rules that are claimed for few or for many threads only
are measured with those.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Figures,
    leave_on_termination,
    machine,
    markdown,
    number,
    run_task,
    write_json,
)
from _micro import Micro
from _rules import RULES
from _timing import timed_session, times_as_fast, turns
from speed import whole_numbers

CLEAR = 0.1  # a rule that misses by more than this share, in every run, is broken


def task_rule(payload: Figures) -> Figures:
    """Seconds of each form of a rule's graph, round by round."""
    import onnx

    rule = next(rule for rule in RULES if rule.name == payload["rule"])
    rng = np.random.default_rng(1)
    feed: dict[str, np.ndarray] = {
        name: rng.integers(0, rule.most, shape) if name in rule.integers else _floats(rng, shape)
        for name, shape in rule.shapes.items()
    }
    sessions: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        for form in rule.forms:
            micro = Micro(form, **rule.types.get(form, {}))  # type: ignore[arg-type]
            path = Path(folder) / "model.onnx"
            onnx.save(micro.finished(rule.shapes, rule.build(micro), rule.integers), path)
            sessions[form] = timed_session(path, payload["threads"])
    calls = {form: (lambda one=one: one.run(None, feed)) for form, one in sessions.items()}
    return {"seconds": turns(calls, threads=payload["threads"], seconds=payload["seconds"])}


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


# -------------------------------------------------------------------------------------- reporting


def measure(index: int, threads: int, arguments: argparse.Namespace) -> Figures:
    """A row: speed of both forms beside float, and of one beside the other in each run."""
    rule = RULES[index]
    row: Figures = {"rule": rule.name, "threads": threads, "better": rule.better, "worse": rule.worse}
    row |= {"least": rule.least, "ratios": []}
    for _ in range(arguments.runs):
        outcome = run_task(
            task_rule, {"rule": rule.name, "threads": threads, "seconds": arguments.seconds}, timeout=300
        )
        if outcome.error:
            return {**row, "error": outcome.error}
        seconds = outcome.figures["seconds"]
        row["float_ms"] = 1000 * float(np.median(seconds["float"]))
        row["better_speed"] = times_as_fast(seconds["float"], seconds[rule.better], threads=threads)
        row["worse_speed"] = times_as_fast(seconds["float"], seconds[rule.worse], threads=threads)
        ratio = times_as_fast(seconds[rule.worse], seconds[rule.better], threads=threads)
        row["ratios"].append(ratio)
    return row


def holds(row: Figures) -> str:
    """yes, no, or what lies between: missed by less than a tenth, or not in every run."""
    if row.get("error"):
        return f"fails: {row['error']}"
    if min(row["ratios"]) >= row["least"]:
        return "yes"
    return "NO" if max(row["ratios"]) < row["least"] * (1 - CLEAR) else "unclear"


HEADER = (
    "rule", "threads", "float", "form", "× float", "other form", "× float ", "expected", "measured", "holds"
)  # fmt: skip


def table_rows(rows: list[Figures]) -> Iterator[list[str]]:
    for row in rows:
        yield [
            row["rule"],
            str(row["threads"]),
            number(row.get("float_ms"), ".3f", " ms"),
            row["better"],
            number(row.get("better_speed"), ".2f"),
            row["worse"],
            number(row.get("worse_speed"), ".2f"),
            f"≥ {row['least']:.2f} ×",
            ", ".join(f"{ratio:.2f}" for ratio in row["ratios"]) + " ×",
            holds(row),
        ]


def chosen(rules: str | None) -> list[int]:
    parts = [part.strip().lower() for part in (rules or "").split(",")]
    return [index for index, rule in enumerate(RULES) if any(part in rule.name.lower() for part in parts)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rules", metavar="A,B", help="rules whose name contains one of these")
    parser.add_argument("--threads", type=whole_numbers, default=[1, 2], metavar="1,2")
    parser.add_argument("--quick", action="store_true", help="one run of a second for each rule")
    parser.add_argument("--runs", type=int, metavar="N", help="default: 2, quick: 1")
    parser.add_argument("--seconds", type=float, metavar="S", help="default: 3, quick: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, after every rule")
    arguments = parser.parse_args()
    arguments.runs = arguments.runs or (1 if arguments.quick else 2)
    arguments.seconds = arguments.seconds or (1.0 if arguments.quick else 3.0)
    arguments.indices = chosen(arguments.rules)
    if not arguments.indices:
        parser.error(f"no rule {arguments.rules!r}; known: {', '.join(rule.name for rule in RULES)}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    leave_on_termination()
    rows: list[Figures] = []
    for threads in arguments.threads:
        claimed = [index for index in arguments.indices if RULES[index].holds_with(threads)]
        for index in claimed:
            row = measure(index, threads, arguments)
            rows.append(row)
            print(f"{threads} · {row['rule']}: {holds(row)}", file=sys.stderr, flush=True)
            write_json(arguments.json, {"machine": machine(), "rows": rows})
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "\n")
    print(markdown(HEADER, table_rows(rows), words=("form", "other form", "holds")))
    broken = [row for row in rows if holds(row) != "yes"]
    print(
        f"\n{len(rows) - len(broken)} of {len(rows)} hold, {sum(holds(r) == 'NO' for r in rows)} are broken"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
