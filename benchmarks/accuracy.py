"""What each step wins back: an ablation on real models, each step alone and all together.

    python benchmarks/accuracy.py --zoo PATH                       # every model, W8A8, weights per channel
    python benchmarks/accuracy.py --zoo PATH --models mobilenet_v2 --per tensor
    python benchmarks/accuracy.py --zoo PATH --models all_minilm_l6_v2 --limit 400 --calib 16

Variants: ``float``, ``plain`` (no step), every step of ``octavo steps`` by itself,
``bias-correction:sequential``, and ``all`` (every step). All of them see the same calibration feeds and are
judged on the same samples by the zoo's metric; each runs in a process of its own. "local error" is what the
steps' own reports expect of the layers they changed; "size" and "operators" are set beside those of
``plain``: a step may make neither larger. "s" are seconds of quantizing, statistics included.

A difference below the standard error of the metric says little: with 1000 pictures about 1.4 points unpaired.

The zoo is a folder with ``evaluate.py`` and ``inputs.py`` (default: ``$OCTAVO_ZOO_DIR``, else
``../shared/zoo`` beside this checkout); ``$OCTAVO_ZOO`` names the folder of its larger models.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import (
    Figures,
    Verdict,
    folder_bytes,
    import_octavo,
    leave_on_termination,
    machine,
    markdown,
    number,
    print_verdicts,
    run_task,
    write_json,
)
from _zoo import MODELS, calibration_feeds, task_evaluate, zoo_module

STEPS = ("smoothquant", "equalize", "rounding", "bias-correction")
VARIANTS: dict[str, tuple[str, ...]] = {
    "float": (),
    "plain": (),
    **{step: (step,) for step in STEPS},
    "bias-correction:sequential": ("bias-correction:sequential",),
    "all": STEPS,
}
STATIC = [name for name, model in MODELS.items() if not model.dynamic]
MOST_LOST = 0.015  # of mobilenet_v2 with one scale for each weight tensor, with all steps
MOST_SECONDS = 300
Table = dict[str, dict[str, Figures]]  # model → variant → row


def task_steps(payload: Figures) -> Figures:
    """Quantize one model with some steps."""
    import_octavo()
    import octavo

    weights = octavo.W8A8.weights
    if payload["per"] == "tensor":
        weights = weights.but(granularity=octavo.PerTensor())
    recipe = octavo.W8A8.but(weights=weights, steps=tuple(payload["steps"]))
    source = zoo_module(payload["zoo"], "evaluate").model_path(payload["model"])
    output = Path(payload["output"])
    output.parent.mkdir(parents=True, exist_ok=True)
    feeds = list(calibration_feeds(payload))
    began = time.perf_counter()
    result = octavo.quantize(source, feeds, recipe=recipe, output=output)
    return {
        "path": str(output),
        "seconds": time.perf_counter() - began,
        "bytes": folder_bytes(output.parent),
        "operators": len(result.model.graph),
        "reports": [_report(report) for report in result.steps],
    }


def _report(report: Any) -> Figures:
    return {
        "step": report.step,
        "changed": len(report.changed),
        "refused": len(report.refused),
        "fall": report.fall,
    }


def measure(arguments: argparse.Namespace) -> Table:
    table: Table = {}
    with tempfile.TemporaryDirectory(prefix="octavo-steps-") as folder:
        for model in arguments.models:
            for variant in arguments.variants:
                row = measure_row(model, variant, Path(folder) / model / variant.replace(":", "-"), arguments)
                table.setdefault(model, {})[variant] = row
                shown = row.get("error") or number(figure(model, row), ".4f")
                print(f"{model:20s} {variant:28s} {shown}", file=sys.stderr, flush=True)
                write_json(arguments.json, {"machine": machine(), "table": table})
    return table


def measure_row(model: str, variant: str, folder: Path, arguments: argparse.Namespace) -> Figures:
    payload: Figures = {
        "zoo": str(arguments.zoo),
        "model": model,
        "per": arguments.per,
        "steps": VARIANTS[variant],
        "output": str(folder / "model.onnx"),
        "feeds": arguments.calib or MODELS[model].feeds,
        "limit": arguments.limit,
        "path": None,
    }
    row: Figures = {}
    if variant != "float":
        made = run_task(task_steps, payload, timeout=arguments.timeout)
        if made.error:
            return {"error": made.error}
        row = dict(made.figures)
        payload["path"] = row["path"]
    judged = run_task(task_evaluate, payload, timeout=arguments.timeout)
    return {**row, **judged.figures, "error": judged.error}


def figure(model: str, row: Figures | None) -> float | None:
    value: float | None = (row or {}).get("metrics", {}).get(MODELS[model].metric)
    return value


def table_rows(table: Table) -> Iterator[list[str]]:
    for model, rows in table.items():
        base, plain = figure(model, rows.get("float")), rows.get("plain", {})
        for variant, row in rows.items():
            value = figure(model, row)
            off = value - base if value is not None and base is not None and variant != "float" else None
            same = "bytes" in row and "bytes" in plain
            yield [
                model,
                variant,
                MODELS[model].metric,
                row.get("error") or number(value, ".4f"),
                number(off, "+.4f"),
                number(row["bytes"] / plain["bytes"], ".3f", " ×") if same else "",
                f"{row['operators'] - plain['operators']:+d}" if same else "",
                number(row.get("seconds")),
                "; ".join(
                    f"{r['step']} {-100 * r['fall']:+.0f} % in {r['changed']}" for r in row.get("reports", ())
                ),
            ]


HEADER = ("model", "variant", "metric", "value", "− float", "size", "operators", "s", "local error")


def verdicts(table: Table, arguments: argparse.Namespace) -> Iterator[Verdict]:
    for model, rows in table.items():
        plain, together = rows.get("plain", {}), rows.get("all", {})
        if "bytes" not in plain or "bytes" not in together:
            continue
        kept = together["bytes"] <= plain["bytes"] * 1.001 and together["operators"] <= plain["operators"]
        change = f"{together['bytes'] - plain['bytes']:+d} bytes, {together['operators']} operators"
        yield Verdict(f"{model}: steps make it neither larger nor longer", kept, change)
        taken = together["seconds"]
        yield Verdict(f"{model}: all steps in 5 minutes", taken <= MOST_SECONDS, f"{taken:.0f} s")
        before, after = figure(model, plain), figure(model, together)
        if before is not None and after is not None:
            better = after >= before if MODELS[model].higher_is_better else after <= before
            text = f"{MODELS[model].metric} {before:.4f} → {after:.4f}"
            yield Verdict(f"{model}: all steps are no worse than none", better, text)
    rows = table.get("mobilenet_v2", {})
    base, value = figure("mobilenet_v2", rows.get("float")), figure("mobilenet_v2", rows.get("all"))
    if arguments.per == "tensor" and base is not None and value is not None:
        claim = "mobilenet_v2, one scale for each weight: at most 1.5 points lost"
        yield Verdict(claim, base - value <= MOST_LOST, f"{100 * (base - value):+.1f} points lost")


def names(known: list[str], kind: str):  # type: ignore[no-untyped-def]
    """An argparse type: names out of ``known``, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"no {kind} {', '.join(unknown)!r}; known: {', '.join(known)}")
        return chosen

    return parse


def parse_arguments() -> argparse.Namespace:
    beside = Path(__file__).resolve().parents[2] / "shared" / "zoo"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    zoo = Path(os.environ.get("OCTAVO_ZOO_DIR", beside))
    parser.add_argument("--zoo", type=Path, default=zoo, metavar="PATH")
    parser.add_argument("--models", type=names(STATIC, "model"), default=STATIC, metavar="A,B")
    every = list(VARIANTS)
    parser.add_argument("--variants", type=names(every, "variant"), default=every, metavar="A,B")
    parser.add_argument("--per", choices=("channel", "tensor"), default="channel", help="scales of weights")
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N samples only")
    parser.add_argument("--calib", type=int, metavar="N", help="calibration feeds")
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="limit of each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, after every row")
    arguments = parser.parse_args()
    if not (arguments.zoo / "evaluate.py").exists():
        parser.error(f"no zoo in {arguments.zoo}: name it with --zoo or $OCTAVO_ZOO_DIR")
    arguments.zoo = arguments.zoo.resolve()
    return arguments


def main() -> int:
    arguments = parse_arguments()
    leave_on_termination()
    table = measure(arguments)
    host = machine()
    print(", ".join(f"{key} {value}" for key, value in host.items()) + f"; weights per {arguments.per}\n")
    print(markdown(HEADER, table_rows(table), words=("variant", "metric", "local error")))
    found = list(verdicts(table, arguments))
    print_verdicts(found)
    write_json(
        arguments.json, {"machine": host, "table": table, "verdicts": [vars(verdict) for verdict in found]}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
