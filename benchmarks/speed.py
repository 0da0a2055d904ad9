"""How fast quantized models run: Octavo's plain recipe and its automatic choice, against float and stock.

    python benchmarks/speed.py                                 # models built in code, 1 and 2 threads
    python benchmarks/speed.py --quick --threads 1,4,16
    python benchmarks/speed.py --zoo PATH --models mobilenet_v2,zoo:yolov8n

Models: shapes of ResNet-50, MobileNet v2 and v3, BERT, ViT and YOLOv8, with random weights (`_shapes.py`;
some are shortened, it says which), and with ``--zoo`` those of the zoo, as ``zoo:NAME``. Variants, each
made in a process of its own from the same calibration samples:

- ``float``: the model as it is.
- ``stock-default``: ``onnxruntime.quantization.quantize_static`` with every option at its default.
- ``stock-best``: ``quant_pre_process``, then QDQ with QUInt8 activations and QInt8 weights per channel
  (without the preparation where that fails; ``quantize_dynamic`` per channel where there is no data).
- ``octavo``: ``octavo.quantize(model, data)``, the target's recipe.
- ``octavo-auto``: ``octavo.tune(model, data, threads=…)``, which tries and measures; once for each number
  of threads.

All variants of a model take turns in one process. A speed is the median over rounds of (seconds of float
/ seconds of the variant), CPU time, with one thread; with more it is wall time, and the lower quartile of one
against that of the other. dB is the signal to noise
ratio of the outputs against float's, the worst output counting. On random weights it says whether a model
still computes the same, no more.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Feed,
    Feeds,
    Figures,
    TaskError,
    Verdict,
    failure,
    import_octavo,
    leave_on_termination,
    machine,
    markdown,
    number,
    print_verdicts,
    run_task,
    shorten,
    sqnr_db,
    write_json,
)
from _shapes import SHAPES
from _timing import geometric_mean, timed_session, times_as_fast, turns
from _zoo import MODELS, VARIANTS, octavo_auto, speed_feeds, zoo_module
from _zoo import task_quantize as task_quantize_zoo

OTHERS = ("stock-default", "stock-best", "octavo", "octavo-auto")
ZOO = "zoo:"
MIN_OVER_DEFAULT, MIN_OVER_BEST, MAX_BEHIND_BEST = 1.9, 1.03, 0.05
RUINED = 10.0  # dB
Row = Figures
Table = dict[str, dict[str, dict[str, Row]]]  # threads → model → variant → row


# -------------------------------------------------------------------------------------- the tasks


def task_make(payload: Figures) -> Figures:
    import onnx

    onnx.save(SHAPES[payload["model"]].build(), payload["path"])
    return {}


def task_quantize(payload: Figures) -> Figures:
    """One model built in code, in one way."""
    source, output, variant = Path(payload["source"]), Path(payload["output"]), payload["variant"]
    samples = SHAPES[payload["model"]].feeds(payload["feeds"])
    feeds = Feeds(lambda: samples)
    output.parent.mkdir(parents=True, exist_ok=True)
    if variant.startswith("octavo"):
        import_octavo()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as scratch:
        copy = Path(scratch) / "model.onnx"
        shutil.copyfile(source, copy)
        quantizer = VARIANTS[variant]
        assert quantizer is not None
        try:
            if variant == "octavo-auto":
                note = octavo_auto(copy, output, feeds, payload["threads"])
            else:
                note = quantizer(copy, output, feeds)
        except Exception as error:
            raise failure("quantizing fails", error) from error
    return {"note": note, "wall_s": time.perf_counter() - start}


def task_time(payload: Figures) -> Figures:
    """Seconds of each file, round by round, and how far its outputs are from the first one's."""
    feeds = list(_feeds(payload))
    sessions: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for variant, path in payload["paths"].items():
        try:
            sessions[variant] = timed_session(path, payload["threads"])
            sessions[variant].run(None, feeds[0])
        except Exception as error:
            sessions.pop(variant, None)
            errors[variant] = f"does not run: {shorten(str(error))}"
    reference = next(iter(payload["paths"]))
    if reference not in sessions:
        raise TaskError(errors[reference])
    fidelity = {
        name: _worst_sqnr(sessions[reference], session, feeds)
        for name, session in sessions.items()
        if name != reference
    }

    def once(session: Any) -> None:
        for feed in feeds:
            session.run(None, feed)

    calls = {name: (lambda session=session: once(session)) for name, session in sessions.items()}
    taken = turns(calls, threads=payload["threads"], seconds=payload["seconds"])
    seconds = {name: [value / len(feeds) for value in values] for name, values in taken.items()}
    return {"seconds": seconds, "sqnr_db": fidelity, "errors": errors}


def _feeds(payload: Figures) -> Iterator[Feed]:
    if payload.get("zoo"):
        zoo_module(payload["zoo"], "evaluate")
        yield from itertools.islice(speed_feeds(payload["zoo"], payload["model"].removeprefix(ZOO)), 2)
    else:
        yield from SHAPES[payload["model"]].feeds(2)


def _worst_sqnr(reference: Any, session: Any, feeds: list[Feed]) -> float:
    wanted = [reference.run(None, feed) for feed in feeds]
    found = [session.run(None, feed) for feed in feeds]
    worst = float("inf")
    for expected, got in zip(zip(*wanted, strict=True), zip(*found, strict=True), strict=True):
        if expected[0].dtype.kind == "f":
            ours = np.concatenate([np.asarray(one, np.float64).ravel() for one in expected])
            theirs = np.concatenate([np.asarray(one, np.float64).ravel() for one in got])
            worst = min(worst, sqnr_db(ours, theirs)) if ours.shape == theirs.shape else -np.inf
    return worst


# -------------------------------------------------------------------------------------- measuring


class Bench:
    """Makes every file once, and times them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.a = arguments
        self._made: dict[tuple[str, str], Row] = {}

    def table(self) -> Iterator[Table]:
        """The table after each model."""
        table: Table = {str(threads): {} for threads in self.a.threads}
        for model in self.a.models:
            for threads in self.a.threads:
                rows = self._rows(model, threads)
                self._time(model, threads, rows)
                table[str(threads)][model] = rows
                self._tell(model, threads, rows)
                yield table
            if not self.a.work_given:
                shutil.rmtree(self.a.work / _plain(model), ignore_errors=True)

    def _rows(self, model: str, threads: int) -> dict[str, Row]:
        rows = {"float": self._source(model)}
        for variant in OTHERS:
            key = f"{variant}-{threads}" if variant == "octavo-auto" else variant
            if (model, key) not in self._made:
                self._made[model, key] = self._quantized(model, variant, key, threads)
            rows[variant] = dict(self._made[model, key])
        if rows["stock-best"].get("error"):
            if (model, "stock-raw") not in self._made:
                self._made[model, "stock-raw"] = self._quantized(model, "stock-raw", "stock-raw", threads)
            raw = self._made[model, "stock-raw"]
            rows["stock-best"] = {**raw, "note": f"not prepared: {rows['stock-best']['error']}"}
        return rows

    def _source(self, model: str) -> Row:
        if (model, "float") not in self._made:
            path = self.a.work / _plain(model) / "float.onnx"
            path.parent.mkdir(parents=True, exist_ok=True)
            if model.startswith(ZOO):
                path = Path(zoo_module(str(self.a.zoo), "evaluate").model_path(model.removeprefix(ZOO)))
                self._made[model, "float"] = {"path": str(path)}
            else:
                outcome = run_task(task_make, {"model": model, "path": str(path)}, timeout=self.a.timeout)
                self._made[model, "float"] = {"path": str(path), "error": outcome.error}
        return dict(self._made[model, "float"])

    def _quantized(self, model: str, variant: str, key: str, threads: int) -> Row:
        output = self.a.work / _plain(model) / key / "model.onnx"
        payload: Figures = {"variant": variant, "output": str(output), "threads": threads}
        if model.startswith(ZOO):
            name = model.removeprefix(ZOO)
            facts = MODELS[name]
            feeds = facts.feeds if not self.a.quick else max(2, facts.feeds // 4)
            payload |= {"zoo": str(self.a.zoo), "model": name, "feeds": feeds}
            outcome = run_task(task_quantize_zoo, payload, timeout=self.a.timeout)
        else:
            payload |= {"model": model, "source": self._source(model)["path"], "feeds": self.a.feeds}
            outcome = run_task(task_quantize, payload, timeout=self.a.timeout)
        row: Row = {"path": str(output), "error": outcome.error, "note": outcome.figures.get("note", "")}
        return {**row, "wall_s": outcome.figures.get("wall_s")}

    def _time(self, model: str, threads: int, rows: dict[str, Row]) -> None:
        outcome = run_task(
            task_time,
            {
                "model": model,
                "zoo": str(self.a.zoo) if model.startswith(ZOO) else None,
                "threads": threads,
                "seconds": self.a.seconds,
                "paths": {name: row["path"] for name, row in rows.items() if not row.get("error")},
            },
            timeout=self.a.timeout,
        )
        if outcome.error:
            rows["float"]["error"] = outcome.error
        for name, error in outcome.figures.get("errors", {}).items():
            rows[name]["error"] = error
        for name, seconds in outcome.figures.get("seconds", {}).items():
            fidelity = outcome.figures["sqnr_db"].get(name)
            rows[name].update(seconds=seconds, threads=threads, sqnr_db=fidelity)

    def _tell(self, model: str, threads: int, rows: dict[str, Row]) -> None:
        words = (f"{name} {speed_text(rows, name)}" for name in rows)
        print(f"{model}, {threads} threads: " + ", ".join(words), file=sys.stderr, flush=True)


def _plain(model: str) -> str:
    return model.replace(":", "_")


# -------------------------------------------------------------------------------------- reporting


def speed(rows: dict[str, Row], variant: str, base: str = "float") -> float | None:
    """How many times as fast as `base` a variant is; None where either does not run."""
    ours, theirs = rows[variant].get("seconds"), rows[base].get("seconds")
    return times_as_fast(theirs, ours, threads=rows[variant]["threads"]) if ours and theirs else None


def speed_text(rows: dict[str, Row], variant: str) -> str:
    if rows[variant].get("error"):
        return "fails"
    if variant == "float":
        return number(1000 * float(np.median(rows["float"]["seconds"])), ".2f", " ms")
    return number(speed(rows, variant), ".2f", " ×")


def table_rows(table: Table) -> Iterator[list[str]]:
    for threads, models in table.items():
        for model, rows in models.items():
            yield [
                model,
                threads,
                *(speed_text(rows, variant) for variant in ("float", *OTHERS)),
                *(
                    number(speed(rows, "octavo-auto", base), ".2f", " ×")
                    for base in ("stock-default", "stock-best")
                ),
                " / ".join(number(rows[name].get("sqnr_db"), ".0f") for name in OTHERS),
                "; ".join(f"{name}: {text}" for name in OTHERS if (text := _note(rows[name]))),
            ]


def _note(row: Row) -> str:
    return "; ".join(filter(None, [row.get("error"), row.get("note")]))


HEADER = (
    "model", "threads", "float", *OTHERS, "auto ÷ default", "auto ÷ best", "dB of the four", "notes"
)  # fmt: skip


def verdicts(table: Table) -> Iterator[Verdict]:
    for threads, models in table.items():
        at = f"{threads} thread{'s' if threads != '1' else ''}"
        for base, least in (("stock-default", MIN_OVER_DEFAULT), ("stock-best", MIN_OVER_BEST)):
            yield _mean_verdict(models, base, least, at)
        yield _behind_verdict(models, at)
        yield _float_verdict(models, at)


def _mean_verdict(models: dict[str, dict[str, Row]], base: str, least: float, at: str) -> Verdict:
    ratios = {model: speed(rows, "octavo-auto", base) for model, rows in models.items()}
    known = {model: value for model, value in ratios.items() if value is not None}
    claim = f"{at}: automatic choice over {base}, geometric mean at least {least} ×"
    if not known:
        return Verdict(claim, None, "not measured")
    mean = geometric_mean(list(known.values()))
    left = [model for model in ratios if model not in known]
    evidence = f"{mean:.2f} × over {len(known)} models"
    return Verdict(claim, mean >= least, evidence + (f"; without {', '.join(left)}" if left else ""))


def _behind_verdict(models: dict[str, dict[str, Row]], at: str) -> Verdict:
    claim = f"{at}: on no model more than {MAX_BEHIND_BEST:.0%} slower than stock-best"
    behind, excused = [], []
    for model, rows in models.items():
        ratio = speed(rows, "octavo-auto", "stock-best")
        if ratio is None or ratio >= 1 - MAX_BEHIND_BEST:
            continue
        ours, theirs = rows["octavo-auto"].get("sqnr_db"), rows["stock-best"].get("sqnr_db")
        text = f"{model} {ratio:.2f} × ({number(ours)} dB, stock-best {number(theirs)} dB)"
        ruined = theirs is not None and theirs < RUINED and ours is not None and ours > theirs
        (excused if ruined else behind).append(text)
    parts = [", ".join(behind) or "none"]
    if excused:
        parts.append(f"stock-best is faster, and its outputs are ruined: {', '.join(excused)}")
    return Verdict(claim, not behind, "; ".join(parts))


def _float_verdict(models: dict[str, dict[str, Row]], at: str) -> Verdict:
    claim = f"{at}: on no model slower than float"
    slow = []
    for model, rows in models.items():
        found = speed(rows, "octavo-auto")
        if found is None:
            slow.append(f"{model} ({rows['octavo-auto'].get('error') or 'not measured'})")
        elif found < 1:
            slow.append(f"{model} {found:.2f} ×")
    least = min((speed(rows, "octavo-auto") or 0 for rows in models.values()), default=0)
    return Verdict(claim, not slow, ", ".join(slow) or f"the least gain is {least:.2f} ×")


# ----------------------------------------------------------------------------------- command line


def whole_numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 1,2")
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", metavar="A,B", help="default: all built in code, and all of the zoo's")
    parser.add_argument("--zoo", type=Path, metavar="PATH", help="measure the models of a zoo as well")
    parser.add_argument("--threads", type=whole_numbers, default=[1, 2], metavar="1,2")
    parser.add_argument("--quick", action="store_true", help="fewer samples and shorter measurements")
    parser.add_argument("--feeds", type=int, metavar="N", help="calibration samples (default: 16, quick: 8)")
    parser.add_argument("--seconds", type=float, metavar="S", help="time for the turns of one model")
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="limit of each process")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the produced models here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here, after every model")
    arguments = parser.parse_args()
    known = [*SHAPES, *(f"{ZOO}{name}" for name in MODELS if arguments.zoo)]
    arguments.models = arguments.models.split(",") if arguments.models else known
    unknown = [model for model in arguments.models if model not in known]
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; known: {', '.join(known)} (zoo:… with --zoo PATH)")
    if arguments.zoo and not (arguments.zoo / "evaluate.py").exists():
        parser.error(f"no zoo in {arguments.zoo}: it has no evaluate.py")
    arguments.zoo = arguments.zoo.resolve() if arguments.zoo else None
    arguments.feeds = arguments.feeds or (8 if arguments.quick else 16)
    arguments.seconds = arguments.seconds or (3.0 if arguments.quick else 15.0)
    return arguments


def main() -> int:
    arguments = parse_arguments()
    leave_on_termination()
    arguments.work_given = arguments.work is not None
    temporary = None if arguments.work_given else tempfile.mkdtemp(prefix="octavo-speed-")
    arguments.work = Path(temporary or arguments.work).resolve()
    host, table, found = machine(), Table(), list[Verdict]()
    try:
        for table in Bench(arguments).table():
            found = list(verdicts(table))
            content = {"machine": host, "table": table, "verdicts": [vars(one) for one in found]}
            write_json(arguments.json, content)
    finally:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
    print(", ".join(f"{key} {value}" for key, value in host.items()) + "\n")
    print(markdown(HEADER, table_rows(table), words=("notes",)))
    print_verdicts(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
