"""What quantizing costs in accuracy, and what steps, the automatic choice and other tools make of it.

    python benchmarks/accuracy.py --zoo PATH --cache DIR           # every model and variant
    python benchmarks/accuracy.py --zoo PATH --models mobilenet_v2 --per tensor
    python benchmarks/accuracy.py --zoo PATH --models yolov8n --variants float,plain,auto --limit 64
    python benchmarks/accuracy.py --zoo PATH --robust              # three disjoint calibration sets of 64
    python benchmarks/accuracy.py --zoo PATH --robust --models ppocrv4_rec,yolov8n
    python benchmarks/accuracy.py --zoo PATH --fragile             # rules for fragile patterns, on and off

Variants: ``float``; ``plain`` (no step); ``default`` (``octavo.quantize``, nothing else said); every step of
``octavo steps`` by itself and ``bias-correction:sequential``; ``free`` (all steps that cost no speed) and
``all`` (every step); ``auto`` (``octavo.tune``, nothing else said); ``stock-best``
(onnxruntime.quantization at its best settings); ``nncf`` and ``nncf-mixed`` (NNCF, default and mixed preset;
``--nncf-python`` names the interpreter that has it). All see the same calibration samples (256, or as many as
the zoo has) and are judged on the same samples by the zoo's metric (ppocrv4_rec by 512 lines instead of 64);
each runs in a process of its own. With
``--cache`` models and figures are kept and found again, so that a long run can be split and resumed; empty
the folder when the code has changed.

"− float" is paired on the same samples, with a standard error where the metric has one; "dB" is the signal to
noise ratio of the outputs, of the part that has the lowest, on a few samples. "s" are seconds of quantizing
without those of making samples; "speed" is measured in turns with float, on one thread. "local error" is what
the steps' own reports expect of the layers they changed.

The zoo is a folder with ``evaluate.py`` and ``inputs.py`` (default: ``$OCTAVO_ZOO_DIR``, else
``../shared/zoo`` beside this checkout); ``$OCTAVO_ZOO`` names the folder of its larger models.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from _claims import claims, figure, robustness_claims
from _fragile import PATTERNS
from _measure import Figures, leave_on_termination, machine, markdown, number, print_verdicts, write_json
from _peers import PEERS
from _rows import FEWER, SAMPLES, VARIANTS, Bench
from _samples import standard_error
from _zoo import MODELS, zoo_module

SET = 64  # samples of each of the sets of --robust
SETS = 3
UNSTEPPED = ("float", "plain", "auto", *PEERS)  # what makes sense without calibrated activations
Table = dict[str, dict[str, Figures]]  # model → variant → row


def applies(model: str, variant: str, per: str) -> bool:
    """Whether a variant makes sense for a model; what is done by default is done per channel."""
    if variant == "default" and per == "tensor":
        return False
    return not MODELS[model].dynamic or variant in UNSTEPPED


def measure(bench: Bench) -> Table:
    arguments, table = bench.arguments, Table()
    for model in arguments.models:
        rows = table.setdefault(model, {})
        for variant in filter(lambda name: applies(model, name, arguments.per), arguments.variants):
            rows[variant] = bench.row(model, variant)
            tell(model, variant, rows[variant])
            write_json(arguments.json, {"machine": machine(), "table": table})
        bench.add_speed(model, rows)
        float_file = zoo_module(str(arguments.zoo), "evaluate").model_path(model)
        rows.get("float", {})["bytes"] = float_file.stat().st_size
    return table


def measure_robustness(bench: Bench) -> Table:
    """The same variants from several disjoint sets of calibration samples."""
    arguments, table = bench.arguments, Table()
    for model in arguments.models:
        each = MODELS[model].samples_per_feed
        size = min(SET, FEWER.get(model, SET * SETS) // SETS)
        size = max(each, size // each * each)
        for variant in arguments.variants:
            for number_ in range(1 if variant == "float" else SETS):
                name = variant if variant == "float" else f"{variant}, set {number_ + 1}"
                row = bench.row(model, variant, skip=number_ * size, samples=size)
                table.setdefault(model, {})[name] = row
                tell(model, name, row)
                write_json(arguments.json, {"machine": machine(), "table": table})
        bench.add_speed(model, table[model])
    return table


def tell(model: str, variant: str, row: Figures) -> None:
    shown = row.get("error") or number(figure(model, row), ".4f")
    print(f"{model:20s} {variant:34s} {shown}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------- tables

LAST = "local error, notes"
HEADER = ("model", "variant", "metric", "value", "− float", "± se", "dB", "speed", "size", "s", LAST)


def table_rows(table: Table) -> Iterator[list[str]]:
    for model, rows in table.items():
        base = rows.get("float", {})
        for variant, row in rows.items():
            value, reference = figure(model, row), figure(model, base)
            paired = variant != "float" and value is not None and reference is not None
            error = standard_error(row.get("jackknife"), base.get("jackknife")) if paired else None
            sized = "bytes" in row and "bytes" in base
            yield [
                model,
                variant,
                MODELS[model].metric,
                row.get("error") or number(value, ".4f"),
                number(value - reference, "+.4f") if paired else "",
                number(error, ".4f"),
                number(row.get("sqnr_db"), ".1f"),
                number(row.get("speed"), ".2f", " ×"),
                number(row["bytes"] / base["bytes"], ".3f", " ×") if sized else "",
                number(row.get("seconds")),
                remarks(row),
            ]


def remarks(row: Figures) -> str:
    """What the steps say of their work, and what else is to be known of a row."""
    told = [f"{r['step']} {-100 * r['fall']:+.0f} % in {r['changed']}" for r in row.get("reports", ())]
    return "; ".join([*told, *filter(None, [row.get("note")])])


FRAGILE_HEADER = (
    "pattern", "model", "rule", "metric", "float", "on", "off", "off − on", "± se", "dB on", "dB off",
    "speed on", "speed off",
)  # fmt: skip


def fragile_rows(bench: Bench, names: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        pattern = PATTERNS[name]
        sides = {side: bench.fragile_row(name, side) for side in ("on", "off")}
        for side, row in sides.items():
            tell(pattern.model, f"{name}, {side}", row)
        bench.add_speed(pattern.model, sides)
        on, off = sides["on"], sides["off"]
        values = [figure(pattern.model, row) for row in (bench.row(pattern.model, "float"), on, off)]
        change = values[2] - values[1] if values[1] is not None and values[2] is not None else None
        shown = [row.get("error") or number(v, ".4f") for row, v in zip((on, off), values[1:], strict=True)]
        yield [
            name,
            pattern.model,
            pattern.rule,
            MODELS[pattern.model].metric,
            number(values[0], ".4f"),
            *shown,
            number(change, "+.4f"),
            number(standard_error(on.get("jackknife"), off.get("jackknife")), ".4f"),
            *(number(row.get("sqnr_db"), ".1f") for row in (on, off)),
            *(number(row.get("speed"), ".2f", " ×") for row in (on, off)),
        ]


# --------------------------------------------------------------------------------- command line


def names(known: Sequence[str], kind: str) -> Any:
    """An argparse type: names out of ``known``, separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in known]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"no {kind} {', '.join(unknown)!r}; known: {', '.join(known)}")
        return chosen

    return parse


def patterns(text: str) -> list[str]:
    """An argparse type: the patterns whose name or model begins so, out of a list with commas."""
    starts = tuple(part for part in text.split(",") if part)
    chosen = [
        name for name, one in PATTERNS.items() if starts and (name.startswith(starts) or one.model in starts)
    ]
    if not chosen:
        raise argparse.ArgumentTypeError(f"no pattern {text!r}; known: {'; '.join(PATTERNS)}")
    return chosen


def parse_arguments() -> argparse.Namespace:
    beside = Path(__file__).resolve().parents[2] / "shared" / "zoo"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    zoo = Path(os.environ.get("OCTAVO_ZOO_DIR", beside))
    parser.add_argument("--zoo", type=Path, default=zoo, metavar="PATH")
    parser.add_argument("--models", type=names(list(MODELS), "model"), default=list(MODELS), metavar="A,B")
    parser.add_argument("--variants", type=names(VARIANTS, "variant"), metavar="A,B")
    parser.add_argument("--per", choices=("channel", "tensor"), default="channel", help="scales of weights")
    parser.add_argument("--robust", action="store_true", help="three disjoint calibration sets")
    parser.add_argument(
        "--fragile", nargs="?", type=patterns, const=list(PATTERNS), metavar="A,B",
        help="rules for fragile patterns, on and off",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N samples only")
    parser.add_argument("--calib", type=int, metavar="N", help=f"calibration samples (default: {SAMPLES})")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="keep models and figures, and resume")
    parser.add_argument("--nncf-python", default=sys.executable, metavar="FILE", help="python that has NNCF")
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S", help="of timing, for each model file"
    )
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="limit of each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, after every row")
    arguments = parser.parse_args()
    if not (arguments.zoo / "evaluate.py").exists():
        parser.error(f"no zoo in {arguments.zoo}: name it with --zoo or $OCTAVO_ZOO_DIR")
    if arguments.variants is None:
        arguments.variants = ["float", "auto"] if arguments.robust else list(VARIANTS)
    arguments.zoo = arguments.zoo.resolve()
    return arguments


def main() -> int:
    arguments = parse_arguments()
    leave_on_termination()
    with tempfile.TemporaryDirectory(prefix="octavo-accuracy-") as scratch:
        bench = Bench(arguments, (arguments.cache or Path(scratch)).resolve())
        host = machine()
        heading = (
            ", ".join(f"{key} {value}" for key, value in host.items()) + f"; weights per {arguments.per}\n"
        )
        if arguments.fragile:
            rows = list(fragile_rows(bench, arguments.fragile))
            print(heading)
            print(markdown(FRAGILE_HEADER, rows, words=("model", "rule", "metric")))
            return 0
        table = measure_robustness(bench) if arguments.robust else measure(bench)
    print(heading)
    print(markdown(HEADER, table_rows(table), words=("variant", "metric", LAST)))
    found = list(robustness_claims(table) if arguments.robust else claims(table, arguments.per))
    print_verdicts(found)
    write_json(
        arguments.json, {"machine": host, "table": table, "verdicts": [vars(verdict) for verdict in found]}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
