"""Accuracy, size, speed and cost of quantizing real models, against float and ``onnxruntime.quantization``.

    python benchmarks/zoo.py --zoo PATH                         # every model, every variant
    python benchmarks/zoo.py --zoo PATH --models fashion_cnn,mobilenet_v2 --variants float,stock-best,octavo
    python benchmarks/zoo.py --zoo PATH --cache rows.json       # reuse float and stock rows of an earlier run

Variants:

- ``float``: the model as it is.
- ``stock-default``: ``quantize_static`` with every option at its default (QInt8 activations and weights,
  per tensor, QDQ, MinMax) on the raw model; ``quantize_dynamic`` for the language model.
- ``stock-best``: ``quant_pre_process``, then ``quantize_static`` with QUInt8 activations, QInt8 weights,
  per channel, QDQ; ``quantize_dynamic`` per channel with QInt8 for the language model.
- ``stock-raw``: the same without ``quant_pre_process``, where ``stock-best`` fails.
- ``stock-dynamic``: ``quantize_dynamic`` per channel with QInt8, an extra for the sentence encoders.
- ``octavo``: ``octavo.quantize(model, data, output=…)``, all defaults; without data for the language model.
- ``octavo-dynamic``: without data, an extra for the sentence encoders (only when requested).
- ``octavo-auto``: ``octavo.tune(model, data, output=…)``, all defaults: what ``octavo quantize`` does.

At the end stands, for each way of quantizing, the share of models for which everything holds at once:
faster than float, a metric within 1 % of float's (detection 2 %, perplexity 5 %), a file under 0.35 ×
(0.6 × with large tables of words or recurrent layers). Where the metric is a distance from float, which
has no share, Octavo's own limits stand in: 20 dB, or a mean difference of 0.01. What fails to quantize,
to load or to run does not hold.

Every quantization and every evaluation runs in a process of its own, so a crash or a hang is a row of the
table. All variants of a model see the same calibration feeds; making those is not billed. The metric is the
zoo's, on all its samples unless ``--limit`` says otherwise; two models are compared sample by sample, and a
difference within two standard errors is none. The size counts external data. The speed is
always measured afresh: all files of a model interleaved in one process, one thread, CPU time. "CPU s" and
"peak MB" are the cost of quantizing: CPU seconds of all threads after imports, and the highest RSS.

The zoo is a folder with ``evaluate.py`` and ``inputs.py`` (default: ``$OCTAVO_ZOO_DIR``, else
``../shared/zoo`` beside this checkout); ``$OCTAVO_ZOO`` names the folder of its larger models.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _measure import (
    Figures,
    Verdict,
    leave_on_termination,
    machine,
    markdown,
    number,
    print_verdicts,
    run_task,
    write_json,
)
from _samples import standard_error, task_judge
from _zoo import MISSED, MODELS, VARIANTS, applies, task_quantize, task_speed

DEFAULT_VARIANTS = [variant for variant in VARIANTS if variant != "octavo-dynamic"]
SHARED = ("octavo-auto", "octavo", "stock-default", "stock-best", "stock-dynamic")  # the order of the shares
MAX_LOSS = {"mAP": 0.02, "perplexity": 0.05}  # shares of the float figure; 0.01 for all other metrics
OWN = ("octavo", "octavo-auto")
SURE = 2  # standard errors: a smaller difference between two metrics is none
STOCK = [variant for variant in VARIANTS if variant.startswith("stock")]
Row = Figures
Table = dict[str, dict[str, Row]]  # model → variant → row


# -------------------------------------------------------------------------------------- measuring


class Cache:
    """Float and stock rows of earlier runs, under everything that their figures depend on."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, Row] = json.loads(path.read_text()) if path and path.exists() else {}
        self._runtime = machine().get("onnxruntime")

    def _key(self, model: str, variant: str, arguments: argparse.Namespace) -> str:
        feeds = None if variant == "float" else feeds_of(model, arguments)
        return f"{model} {variant} feeds={feeds} limit={arguments.limit} onnxruntime={self._runtime} paired"

    def get(self, model: str, variant: str, arguments: argparse.Namespace) -> Row | None:
        row = self._rows.get(self._key(model, variant, arguments))
        if row is None or variant.startswith("octavo"):
            return None
        # The speed is measured on the files, so a row whose file is gone is of no use.
        return dict(row) if row.get("error") or Path(row["path"]).exists() else None

    def put(self, model: str, variant: str, arguments: argparse.Namespace, row: Row) -> None:
        # A time limit or a killed process may be the machine's doing, not the variant's.
        passing = str(row.get("error")).startswith(("still running", "crashed"))
        if not variant.startswith("octavo") and not passing:
            self._rows[self._key(model, variant, arguments)] = row
            write_json(self._path, self._rows)


def feeds_of(model: str, arguments: argparse.Namespace) -> int | None:
    if MODELS[model].dynamic:
        return None
    return MODELS[model].feeds if arguments.calib is None else int(arguments.calib)


def measure_row(model: str, variant: str, arguments: argparse.Namespace) -> Row:
    """Quantize (unless float) and evaluate; what fails ends up in the row's ``error``."""
    payload: Figures = {"zoo": str(arguments.zoo), "model": model, "variant": variant}
    row: Row = {"path": None}
    if variant != "float":
        output = arguments.work / model / variant / "model.onnx"
        quantized = run_task(
            task_quantize,
            {**payload, "output": str(output), "feeds": feeds_of(model, arguments)},
            timeout=arguments.timeout,
        )
        row = {"path": str(output), **quantized.figures, "error": quantized.error}
        if quantized.error:
            return row
    evaluated = run_task(
        task_judge,
        {**payload, "path": row["path"], "limit": arguments.limit},
        timeout=arguments.timeout,
    )
    row.update(evaluated.figures)
    row["error"] = evaluated.error
    if variant == "float" and not evaluated.error:
        row["bytes"] = Path(row["path"]).stat().st_size
    return row


def measure_speed(model: str, rows: dict[str, Row], arguments: argparse.Namespace) -> None:
    """Fill in ``speed`` and ``ms`` for the rows that work: all in one process, or in pairs if that dies."""
    paths = {variant: row["path"] for variant, row in rows.items() if not row.get("error")}
    if "float" not in paths:
        return
    others = [variant for variant in paths if variant != "float"]
    for attempt in [others, *([variant] for variant in others)]:
        outcome = run_task(
            task_speed,
            {
                "zoo": str(arguments.zoo),
                "model": model,
                "threads": arguments.threads,
                "budget": arguments.speed_seconds,
                "paths": {"float": paths["float"], **{variant: paths[variant] for variant in attempt}},
            },
            timeout=arguments.timeout,
        )
        for variant, speed in outcome.figures.get("speed", {}).items():
            rows[variant].update(speed=speed, ms=outcome.figures["ms"][variant])
        for variant in attempt if outcome.error else ():
            rows[variant]["speed_error"] = outcome.error
        if attempt is others and not outcome.error:
            return


# -------------------------------------------------------------------------------------- reporting

HEADER = (
    "model", "variant", "metric", "value", "− float", "size", "speed", "CPU s", "wall s", "peak MB", "notes"
)  # fmt: skip


def table_rows(table: Table) -> Iterator[list[str]]:
    for model, rows in table.items():
        float_row = rows.get("float", {})
        for variant, row in rows.items():
            value, base = main_figure(model, row), main_figure(model, float_row)
            known = value is not None and base is not None and variant != "float"
            yield [
                model,
                variant,
                MODELS[model].metric,
                "fails" if row.get("error") else number(value, ".4f"),
                f"{value - base:+.4f}" if known else "",  # type: ignore[operator]
                number(file_ratio(row, float_row), ".3f", " ×"),
                speed_text(variant, row),
                *cost(row),
                notes(model, row),
            ]


def speed_text(variant: str, row: Row) -> str:
    if variant == "float" and "ms" in row:
        return f"{row['ms']:.2f} ms"
    return number(row.get("speed"), ".2f", " ×")


def notes(model: str, row: Row) -> str:
    """What went wrong, and the figures beside the main one."""
    others = (
        f"{key} {figure:.4g}"
        for key, figure in row.get("metrics", {}).items()
        if key not in (MODELS[model].metric, "n")
    )
    return "; ".join(
        filter(None, [row.get("error"), row.get("speed_error"), ", ".join(others), row.get("note")])
    )


def cost(row: Row) -> list[str]:
    return [number(row.get("cpu_s")), number(row.get("wall_s")), number(row.get("peak_rss_mib"), ".0f")]


def main_figure(model: str, row: Row) -> float | None:
    value: float | None = row.get("metrics", {}).get(MODELS[model].metric)
    return value


def file_ratio(row: Row, float_row: Row) -> float | None:
    return row["bytes"] / float_row["bytes"] if row.get("bytes") and float_row.get("bytes") else None


def accuracy_verdict(model: str, variant: str, rows: dict[str, Row]) -> Verdict:
    """Octavo is no worse than the most accurate stock row, by more than the samples can tell.

    Rows that failed do not count, nor do those in which nothing was quantized: they are the float model.
    """
    facts, claim = MODELS[model], f"{model}: {variant} at least as accurate as stock"
    row = rows[variant]
    own = main_figure(model, row)
    stock = {name: rows[name] for name in STOCK if name in rows}
    figures = {name: main_figure(model, row) for name, row in stock.items() if row.get("quantized_nodes")}
    working = {name: value for name, value in figures.items() if value is not None}
    if own is None:
        return Verdict(claim, False, row.get("error", "not measured"))
    if not working:
        return Verdict(
            claim, True if stock else None, f"{facts.metric} {own:.4f}; no stock variant quantizes it"
        )
    sign = 1 if facts.higher_is_better else -1
    best = max(working, key=lambda name: sign * working[name])
    gain = sign * (own - working[best])
    error = standard_error(row.get("jackknife"), stock[best].get("jackknife"))
    others = ", ".join(f"{name} {value:.4f}" for name, value in working.items())
    apart = f"better by {gain:+.4f} ± {number(error, '.4f')}"
    evidence = f"{facts.metric} {own:.4f}, {others}; {apart} (n = {row['metrics']['n']})"
    return Verdict(claim, gain + SURE * (error or 0) >= 0, evidence)


def verdicts(table: Table) -> Iterator[Verdict]:
    for make in (accuracy_verdict, loss_verdict, file_verdict):
        for model, rows in table.items():
            for variant in OWN:
                found = make(model, variant, rows) if variant in rows else None
                if found is not None:
                    yield found


def loss_verdict(model: str, variant: str, rows: dict[str, Row]) -> Verdict | None:
    """The metric is near float's, where a limit is set for the model."""
    facts = MODELS[model]
    own, base = main_figure(model, rows[variant]), main_figure(model, rows.get("float", {}))
    if facts.max_loss is None:
        return None
    form = ".1%" if facts.relative else ".4f"
    limit = f"{facts.max_loss:{'.0%' if facts.relative else '.2f'}}"
    claim = f"{model}: {variant} worse than float in {facts.metric} by at most {limit}"
    if own is None or base is None:
        return Verdict(claim, False, "not measured")
    loss = facts.loss(base, own)
    evidence = f"worse by {loss:{form}} ({own:.4f}, float {base:.4f})"
    return Verdict(claim, loss <= facts.max_loss, evidence)


def file_verdict(model: str, variant: str, rows: dict[str, Row]) -> Verdict:
    """The file is small."""
    ratio = file_ratio(rows[variant], rows.get("float", {}))
    limit = MODELS[model].max_file_ratio
    claim = f"{model}: {variant} has a file of at most {limit} × float"
    if ratio is None:
        return Verdict(claim, False, "not measured")
    return Verdict(claim, ratio <= limit, f"{ratio:.3f} ×")


def misses(model: str, variant: str, rows: dict[str, Row]) -> list[str]:
    """What does not hold for a variant of a model; nothing where all of it does."""
    row, base = rows.get(variant), rows.get("float", {})
    if row is None or row.get("error"):
        return ["fails" if row is not None else "not tried"]
    found = ["its own requirements"] if MISSED in str(row.get("note")) else []
    if not row.get("quantized_nodes"):
        found.append("nothing quantized")
    if row.get("speed", 0) <= 1:
        found.append(f"speed {number(row.get('speed'), '.2f')}")
    if not is_close(model, row, base):
        found.append(f"{MODELS[model].metric} {number(main_figure(model, row), '.4f')}")
    ratio = file_ratio(row, base)
    if ratio is None or ratio >= MODELS[model].max_file_ratio:
        found.append(f"size {number(ratio, '.3f')}")
    return found


def is_close(model: str, row: Row, base: Row) -> bool:
    """Whether the metric is near enough to float's."""
    facts, own, wanted = MODELS[model], main_figure(model, row), main_figure(model, base)
    if own is None or wanted is None:
        return False
    if facts.metric in FIDELITY:
        return facts.loss(FIDELITY[facts.metric], own) <= 0
    loss = wanted - own if facts.higher_is_better else own - wanted
    return loss <= MAX_LOSS.get(facts.metric, 0.01) * wanted


FIDELITY = {"sqnr_db": 20.0, "mean_difference": 0.01}


def shares(table: Table) -> Iterator[str]:
    """A line for each way of quantizing: for how many models all holds, and what is missed on the others."""
    tried = [variant for variant in SHARED if any(variant in rows for rows in table.values())]
    for variant in tried:
        found = {model: misses(model, variant, rows) for model, rows in table.items()}
        good = sum(not missed for missed in found.values())
        rest = "; ".join(f"{model}: {', '.join(missed)}" for model, missed in found.items() if missed)
        yield f"- {variant}: {good} of {len(found)}{' — ' + rest if rest else ''}"


# ----------------------------------------------------------------------------------- command line


def listed(known: list[str], kind: str):  # type: ignore[no-untyped-def]
    """An argparse type: names out of `known`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"no {kind} {', '.join(unknown)!r}; known: {', '.join(known)}")
        return names

    return parse


def parse_arguments() -> argparse.Namespace:
    beside = Path(__file__).resolve().parents[2] / "shared" / "zoo"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--zoo", type=Path, default=Path(os.environ.get("OCTAVO_ZOO_DIR", beside)), metavar="PATH"
    )
    parser.add_argument("--models", type=listed(list(MODELS), "model"), default=list(MODELS), metavar="A,B")
    parser.add_argument(
        "--variants", type=listed(list(VARIANTS), "variant"), default=DEFAULT_VARIANTS, metavar="A,B"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="evaluate on the first N samples only")
    parser.add_argument(
        "--calib",
        type=int,
        metavar="N",
        help="calibration feeds (default: 64; 16 batches of 8 sentences for text)",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads when measuring speed")
    parser.add_argument(
        "--speed-seconds", type=float, default=20, metavar="S", help="time to spend per model on speed"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="limit of each child process"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="FILE", help="reuse float and stock rows, and add new ones"
    )
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the produced models here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, after every row")
    arguments = parser.parse_args()
    if not (arguments.zoo / "evaluate.py").exists():
        parser.error(
            f"no zoo in {arguments.zoo}: it has no evaluate.py. Name it with --zoo or $OCTAVO_ZOO_DIR"
        )
    if arguments.cache and not arguments.work:
        parser.error(
            "--cache needs --work: the speed is measured on the models that the cached rows speak of"
        )
    arguments.zoo = arguments.zoo.resolve()
    return arguments


def measure(arguments: argparse.Namespace) -> Table:
    cache, table = Cache(arguments.cache), Table()
    for model in arguments.models:
        rows = table[model] = {}
        for variant in arguments.variants:
            if not applies(variant, model, {name: row.get("error") for name, row in rows.items()}):
                continue
            start = time.monotonic()
            row = cache.get(model, variant, arguments)
            if fresh := row is None:
                row = measure_row(model, variant, arguments)
                cache.put(model, variant, arguments, row)
            rows[variant] = row
            outcome = row.get("error") or f"{MODELS[model].metric} {main_figure(model, row):.4f}"
            took = f"{time.monotonic() - start:.0f} s" if fresh else "cached"
            print(f"{model:20s} {variant:15s} {outcome} ({took})", file=sys.stderr, flush=True)
            write_json(arguments.json, {"machine": machine(), "table": table})
        if not arguments.speed_seconds:
            continue
        measure_speed(model, rows, arguments)
        write_json(arguments.json, {"machine": machine(), "table": table})
    return table


def main() -> int:
    arguments = parse_arguments()
    leave_on_termination()
    temporary = None if arguments.work else tempfile.mkdtemp(prefix="octavo-zoo-")
    arguments.work = Path(temporary or arguments.work).resolve()
    try:
        table = measure(arguments)
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    host = machine()
    print(", ".join(f"{key} {value}" for key, value in host.items()) + f"; {arguments.threads} thread(s)\n")
    print(markdown(HEADER, table_rows(table), words=("variant", "metric", "notes")))
    found = list(verdicts(table))
    if found:
        print_verdicts(found)
    share = list(shares(table))
    print("\nFaster than float, as accurate, and small, all at once\n\n" + "\n".join(share))
    figures = {"verdicts": [vars(verdict) for verdict in found], "shares": share}
    write_json(arguments.json, {"machine": host, "table": table, **figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
