"""``octavo quantize``: a model goes in, a smaller one comes out."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.selection import add_selection, op_types, recipe_of, target_of
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.result import Result


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; its file is never touched")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where the quantized model goes")
    parser.add_argument(
        "--data",
        metavar="PATH",
        help="calibration data: an .npz or .npy file, or a folder of them or of test_data_set_*",
    )
    parser.add_argument("--samples", metavar="N", type=_count, help="use at most this many samples")
    add_selection(parser)
    more = parser.add_argument_group("more")
    more.add_argument(
        "--plan", metavar="FILE", help="carry out this plan, made by 'octavo plan' and perhaps edited"
    )
    more.add_argument("--report", metavar="FILE", help="write what was done, as .md, .txt or .json")
    more.add_argument(
        "--manifest", action="store_true", help="write versions, recipe and fingerprints beside the model"
    )
    more.add_argument("--no-verify", action="store_true", help="do not check, load and run the result")
    more.add_argument(
        "--no-prepare", action="store_true", help="take the model as it is: no shapes, no folding"
    )
    more.add_argument("--threads", metavar="N", type=_count, help="threads for calibration")


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; give 1 or more")
    return value


def _check(options: argparse.Namespace) -> None:
    check_report(options.report)
    check_outputs(options.model, {"-o": options.output, "--report": options.report})
    if options.dynamic and options.data is not None:
        raise RecipeError(
            "--dynamic needs no --data: ranges are found while the model runs. Leave one of them out."
        )
    if options.plan is None:
        return
    chosen = ("recipe", "dynamic", "format", "target", "weights", "activations", "per", "method", "op_types")
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
    recipe = recipe_of(options, static=options.data is not None)
    if recipe is None and options.data is None and options.plan is None:
        console.note("no --data: ranges of activations are found while the model runs (dynamic quantization)")
    more: dict[str, Any] = {"prepare": None} if options.no_prepare else {}
    result = octavo.quantize(
        options.model,
        options.data,
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
        threads=options.threads,
        progress=console.progress,
        **more,
    )
    written = [shown(path) for path in _files(options, began)]
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


def _files(options: argparse.Namespace, began: float) -> list[str]:
    """The model, and its external data if this run wrote any."""
    beside = Path(f"{options.output}.data")
    fresh = beside.exists() and beside.stat().st_mtime >= began - 2  # coarse clocks of some file systems
    return [options.output, str(beside)] if fresh else [options.output]


def _report(options: argparse.Namespace, result: Result) -> None:
    from octavo.reporting.plans import plan_table
    from octavo.reporting.summary import markdown, summary

    match Path(options.report).suffix.lower():
        case ".json":
            text = as_json_text(result.to_dict()) + "\n"
        case ".md":
            text = markdown(result, f"{Path(options.model).name} → {Path(options.output).name}")
        case _:
            text = f"{summary(result)}\n\n{plan_table(result.plan, tensors=True)}\n"
    write_text(options.report, text)


VERB = Verb(
    name="quantize",
    summary="quantize a model",
    description="""\
Quantize a model. With --data, ranges of activations come from calibration
(static); without, they are found while the model runs (dynamic). The result is
checked, loaded by ONNX Runtime and run once before it is handed over.""",
    examples=(
        "octavo quantize model.onnx -o model.int8.onnx --data calib.npz",
        "octavo quantize bert.onnx -o bert.int8.onnx --dynamic",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --exclude 'op:Softmax' --exclude '/head/*'",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --method percentile:99.99",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --recipe recipe.yaml --report report.md",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --weights int4 --per block:32",
    ),
    arguments=_arguments,
    run=_run,
)
