"""``octavo quantize``: a model goes in, a smaller one comes out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli import automatic
from octavo.cli.console import Console
from octavo.cli.data import add_data, add_stride, data_of
from octavo.cli.engine import add_engine, engine_options
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.selection import add_selection, op_types, recipe_of, target_of
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.result import Result


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; its file is never touched")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where the quantized model goes")
    add_data(parser)
    add_selection(parser)
    more = parser.add_argument_group("more")
    more.add_argument(
        "--plan", metavar="FILE", help="carry out this plan, made by 'octavo plan' and perhaps edited"
    )
    more.add_argument(
        "--stats", metavar="FILE", help="use these statistics, made by 'octavo calibrate', instead of data"
    )
    more.add_argument(
        "--table",
        metavar="FILE",
        help="use the ranges of this calibration table (.json, .flatbuffers, .cache) instead of data",
    )
    more.add_argument("--report", metavar="FILE", help="write what was done, as .html, .md, .txt or .json")
    more.add_argument(
        "--manifest", action="store_true", help="write versions, recipe and fingerprints beside the model"
    )
    more.add_argument("--no-verify", action="store_true", help="do not check, load and run the result")
    more.add_argument(
        "--no-prepare", action="store_true", help="take the model as it is: no shapes, no folding"
    )
    add_stride(more)
    automatic.add_automatic(parser)
    add_engine(parser)


def _check(options: argparse.Namespace) -> None:
    check_report(options.report)
    check_outputs(options.model, {"-o": options.output, "--report": options.report})
    sources = [name for name in ("data", "stats", "table") if getattr(options, name) is not None]
    given = f"--{sources[0]}" if sources else None
    if options.table is not None and len(sources) > 1:
        raise RecipeError(f"--table takes the place of {given}; leave one of them out.")
    if options.dynamic and given is not None and not options.steps:
        raise RecipeError(
            f"--dynamic needs no {given}: ranges are found while the model runs. Leave one of them out."
        )
    if options.stored == "all" and given is not None:
        raise RecipeError(f"--stored all quantizes nothing and needs no {given}; leave one of them out.")
    if options.plan is None:
        return
    chosen = (
        "recipe",
        "dynamic",
        "stored",
        "format",
        "target",
        "weights",
        "activations",
        "per",
        "method",
        "op_types",
        "steps",
    )
    clash = [
        f"--{name.replace('_', '-')}" for name in (*chosen, "exclude", "include") if getattr(options, name)
    ]
    if clash:
        raise RecipeError(
            f"--plan has decided what {', '.join(clash)} would say; leave them out, or make a new plan."
        )


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    _check(options)
    began = time.time()
    if automatic.is_automatic(options):
        return _choose(options, console, began)
    stats = _stats(options)
    static = options.data is not None or stats is not None
    recipe = recipe_of(options, static=static)
    if recipe is None and not static and options.plan is None:
        console.note("no --data: ranges of activations are found while the model runs (dynamic quantization)")
    more: dict[str, Any] = {"prepare": None} if options.no_prepare else {}
    result = octavo.quantize(
        options.model,
        data_of(options),
        recipe=recipe,
        plan=options.plan,
        target=target_of(options, recipe),
        output=options.output,
        style=options.format,
        exclude=tuple(options.exclude),
        include=tuple(options.include),
        op_types=op_types(options),
        samples=options.samples,
        verify=not options.no_verify,
        stats=stats,
        stride=options.stride,
        histograms=options.report is not None and Path(options.report).suffix.lower() in (".html", ".json"),
        progress=console.progress,
        **engine_options(options),
        **more,
    )
    if recipe is None and not static and options.plan is None and not options.plain:
        _remark_speed(options, console)
    written = [shown(path) for path in _files(options.output, began)]
    if options.manifest:
        written.append(shown(result.save_manifest(options.output)))
    if options.report is not None:
        _report(options, result)
        written.append(shown(options.report))
    checked = " (not verified)" if options.no_verify else ""
    return Answer(
        f"{result.summary()}\nwritten: {', '.join(written)}{checked}",
        {"written": written, "verified": not options.no_verify, **result.to_dict()},
    )


def _stats(options: argparse.Namespace) -> Any:
    """The statistics asked for: a file of them, or the ranges of a table in their form."""
    if options.table is None:
        return options.stats
    from octavo.calibration import tables

    return tables.as_stats(tables.load(options.table), options.model)


def _choose(options: argparse.Namespace, console: Console, began: float) -> Answer:
    """Try the ways that make sense, and keep the best."""
    tuned, output = automatic.choose(options, console)
    written = [shown(path) for path in _files(output, began)]
    if options.manifest and tuned.result is not None:
        written.append(shown(tuned.result.save_manifest(output)))
    if options.report is not None:
        automatic.write_report(options.report, tuned, output)
        written.append(shown(options.report))
    return automatic.answer(tuned, written)


def _remark_speed(options: argparse.Namespace, console: Console) -> None:
    """Say so where the result is slower than float: without data nothing else was tried."""
    from octavo.tuning.quick import quick_speed

    found = quick_speed(options.model, options.output, options.threads)
    if found is not None and found < 1:
        console.note(
            f"slower than float on this machine: {found:.2f} × its speed; with --data other ways are tried"
        )


def _files(output: str, began: float) -> list[str]:
    """The model, and its external data if this run wrote any."""
    beside = Path(f"{output}.data")
    fresh = beside.exists() and beside.stat().st_mtime >= began - 2  # coarse clocks of some file systems
    return [output, str(beside)] if fresh else [output]


def _report(options: argparse.Namespace, result: Result) -> None:
    from octavo.reporting.html import details, report
    from octavo.reporting.plans import plan_table
    from octavo.reporting.summary import markdown, summary

    match Path(options.report).suffix.lower():
        case ".html":
            text = report(details.full(result, options.output))
        case ".json":
            text = as_json_text(details.full(result, options.output)) + "\n"
        case ".md":
            text = markdown(result, f"{Path(options.model).name} → {Path(options.output).name}")
        case _:
            text = f"{summary(result)}\n\n{plan_table(result.plan, tensors=True)}\n"
    write_text(options.report, text)


VERB = Verb(
    name="quantize",
    summary="quantize a model",
    description="""\
Quantize a model. With --data a few sensible ways are tried (static, repaired,
dynamic, mixed, layers left float), judged by samples that were held back and
timed beside float; the best is written. Flags that fix the recipe, or --plain,
take one way at once. Without --data ranges are found while the model runs
(dynamic). Where a demand (--max-drop, --min-sqnr, --min-speed) is not met, the
best goes to OUT.best.onnx and the exit code is 1.""",
    examples=(
        "octavo quantize model.onnx -o model.int8.onnx --data calib.npz",
        "octavo quantize model.onnx -o model.int8.onnx --data calib.npz --plain",
        "octavo quantize model.onnx -o out.onnx --data pictures/ --preprocess imagenet --threads 4",
        "octavo quantize model.onnx -o out.onnx --data val/ --evaluate classification --labels val.csv"
        " --max-drop 0.5%",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --min-sqnr 25 --time-limit 120",
        "octavo quantize bert.onnx -o bert.int8.onnx --dynamic",
        "octavo quantize speech.onnx -o speech.int8.onnx --dynamic --stored rest",
        "octavo quantize model.onnx -o small.onnx --stored all",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --exclude 'op:Softmax' --exclude '/head/*'",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --method percentile:99.99",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --recipe recipe.yaml --report report.md",
        "octavo quantize model.onnx -o out.onnx --stats model.stats",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --weights int4 --per block:32",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --steps equalize,rounding,bias-correction",
    ),
    arguments=_arguments,
    run=_run,
)
