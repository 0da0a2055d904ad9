"""``octavo quantize``: a model goes in, a smaller one comes out."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, add_engine, add_stride, data_of, engine_options, given_flags
from octavo.cli.folder import add_folder, quantize_folder, refuse_folder_flags
from octavo.cli.paths import (
    check_outputs,
    check_report,
    default_output,
    model_outputs,
    shown,
    write_report,
)
from octavo.cli.requirements import (
    NOT_MET,
    UNDECIDED,
    add_effort,
    add_requirements,
    limits_of,
    requirements_of,
    with_gates,
)
from octavo.cli.selection import add_selection, changes_of, flags_of
from octavo.cli.verb import Answer, Verb
from octavo.core.effort import best_path
from octavo.core.files import similar_file, write_text
from octavo.core.outputs import changed_files, file_states
from octavo.errors import ModelError, RecipeError

if TYPE_CHECKING:
    from octavo.result import Result

_MOST_COMMAND = 100_000  # characters of a command line, in a card
_SAVES = 0.625  # of the float bytes: half of the weights in 8 bits, the other half in float


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="the ONNX model, or a folder with its parts; never touched"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where the quantized model goes (default: MODEL.int8.onnx)"
    )
    add_data(parser, weights=True)
    add_selection(parser)
    more = parser.add_argument_group("more")
    more.add_argument(
        "--plan", metavar="FILE", help="follow this plan, made by 'octavo plan' and perhaps edited"
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
        "--card",
        metavar="FILE",
        help="write a model card in Markdown: origin, figures, how to reproduce",
    )
    more.add_argument(
        "--manifest", action="store_true", help="write versions, recipe and fingerprints beside the model"
    )
    more.add_argument("--no-verify", action="store_true", help="do not check, load and run the result")
    more.add_argument(
        "--no-prepare", action="store_true", help="take the model as it is: no shapes, no folding"
    )
    add_stride(more)
    add_effort(parser)
    add_requirements(parser, default=True)
    add_folder(parser)
    add_engine(parser)


def _check(options: argparse.Namespace) -> None:
    """Refuse flags that contradict each other, and outputs that can't be written, before any work is done."""
    check_report(options.report)
    check_outputs(options, {**model_outputs(options), "--card": options.card})
    if options.effort != "plain" or limits_of(options):
        check_outputs(
            options, {"the name for a result that misses its requirements,": str(best_path(options.output))}
        )
    sources = [name for name in ("data", "stats", "table") if getattr(options, name) is not None]
    given = f"--{sources[0]}" if sources else None
    if options.table is not None and len(sources) > 1:
        raise RecipeError(f"--table takes the place of {given}; leave one of them out.")
    if options.dynamic and given is not None and not options.steps and not limits_of(options):
        raise RecipeError(
            f"--dynamic needs no {given}: ranges are found while the model runs. Leave one of them out."
        )
    if options.compressed == "all" and given is not None and not limits_of(options):
        raise RecipeError(f"--compressed all quantizes nothing and needs no {given}; leave one of them out.")
    if options.max_drop is not None and options.evaluate is None:
        raise RecipeError(
            "--max-drop is a loss in a task's metric; say which with --evaluate TASK, or use --min-sqnr."
        )
    if options.plan is not None:
        clash = flags_of(options) + given_flags(options, ("target",))
        if options.effort not in (None, "plain"):
            clash.append("--effort")
        if clash:
            raise RecipeError(
                f"--plan has decided {', '.join(clash)} already; leave them out, or make a new plan."
            )


def _output(options: argparse.Namespace) -> str:
    """Where the model goes where no -o says so: named by the type of its weights."""
    if options.plan is not None:
        return default_output(options.model, "quantized")
    from octavo.pipeline.request import RecipeRequest

    changes: Any = changes_of(options)
    recipe, _ = RecipeRequest.of(options.recipe, options.target, changes).resolve(static=True)
    return default_output(options.model, recipe.weights.qtype.name)


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.result import written_files

    if Path(options.model).is_dir():
        return quantize_folder(options, console)
    if options.output and Path(options.output).is_dir() and not Path(options.model).exists():
        raise ModelError(f"There is no model at {options.model}{similar_file(Path(options.model))}")
    refuse_folder_flags(options)
    if options.output is None:
        options.output = _output(options)
    _check(options)
    before = file_states(written_files(options.output, may_miss=True).values())
    more: dict[str, Any] = {"prepare": None} if options.no_prepare else {}
    stats = _stats(options)
    if options.data is None and stats is None and options.plan is None and not flags_of(options):
        console.note(f"no --data: {_without_data(options)}")
    result = octavo.quantize(
        options.model,
        data_of(options),
        output=options.output,
        target=options.target,
        recipe=options.recipe,
        effort=options.effort,
        samples=options.samples,
        plan=options.plan,
        stats=stats,
        verify=not options.no_verify,
        stride=options.stride,
        histograms=options.report is not None and Path(options.report).suffix.lower() in (".html", ".json"),
        progress=console.progress,
        **changes_of(options),
        **requirements_of(options),
        **engine_options(options),
        **more,
    )
    output = str(options.output if result.met else best_path(options.output))
    _remark_speed(options, result, console)
    _advise(options, result, console)
    written = [shown(path) for path in changed_files(before)]
    if options.manifest:
        written.append(shown(result.save_manifest(output)))
    if options.report is not None:
        _report(options, result, output)
        written.append(shown(options.report))
    if options.card is not None:
        write_text(options.card, _card(options, result, output))
        written.append(shown(options.card))
    return with_gates(_answer(result, written, verified=not options.no_verify), result.gates)


def _without_data(options: argparse.Namespace) -> str:
    """Say what the target's recipe does with activations without data."""
    from octavo.pipeline.request import RecipeRequest

    recipe, _ = RecipeRequest.of(None, options.target, {}).resolve(static=False)
    if recipe.activations is None:
        return "weights alone are quantized, and activations stay in float"
    return "ranges of activations are found while the model runs (dynamic quantization)"


def _answer(result: Result, written: list[str], *, verified: bool) -> Answer:
    """Say what was tried, what was chosen, and what it is."""
    data: dict[str, Any] = {"written": written, "verified": verified, **result.to_dict()}
    lines = f"{result.summary()}\nwritten: {', '.join(written)}{'' if verified else ' (not verified)'}"
    if result.choice is None:
        return Answer(lines, data)
    missed = "" if result.met else f"requirement not met: {result.choice.reason.rstrip('.')}."
    code = 0 if result.met else UNDECIDED if result.choice.is_open else NOT_MET
    return Answer(f"{result.choice}\n\n{lines}", data, code, missed)


def _card(options: argparse.Namespace, result: Result, output: str) -> str:
    import shlex

    from octavo.reporting.model_card import model_card
    from octavo.reporting.text import clean

    command = clean(shlex.join(["octavo", *options.command]), _MOST_COMMAND)
    return model_card(
        result.to_dict(), result.manifest(), model=options.model, output=output, command=command
    )


def _advise(options: argparse.Namespace, result: Result, console: Console) -> None:
    """Say what looks wrong with the data, and that a model gains by data where it is left out."""
    from octavo.cli.wording import in_flags
    from octavo.data.plausibility import CHECK_DATA

    for note in result.notes if result.choice is None else result.choice.notes:
        if str(note).startswith(CHECK_DATA):
            console.note(f"warning: {in_flags(str(note), ('--scale',))}")
    is_small = result.bytes <= _SAVES * result.float_bytes
    if is_small or options.plan is not None:
        return
    if options.data is None and not flags_of(options):
        console.note(
            "most weights stay in float, as few operators of this model gain without calibration; give --data"
            " for static quantization"
        )
    elif options.weights is not None and result.recipe is not None and result.recipe.activations is None:
        console.note(
            f"most weights stay in float: --weights {options.weights} is for matrix products, and this model"
            " has few; leave it out and give --data for 8 bits in all layers"
        )


def _stats(options: argparse.Namespace) -> Any:
    """Return the requested statistics: a file of them, or the ranges of a table in their form."""
    if options.table is None:
        return options.stats
    from octavo.calibration import tables

    return tables.as_stats(tables.load(options.table), options.model)


def _remark_speed(options: argparse.Namespace, result: Result, console: Console) -> None:
    """Say so where the result is slower than float on this machine."""
    if result.choice is not None:
        best = result.choice.best
        if best is not None and best.speed is not None and best.speed.value < 1 and not best.runs_float:
            advice = "" if result.choice.met else "; --min-speed 0 takes what is small and close all the same"
            console.note(f"{_slower(best.speed.value)}{advice}")
        return
    if options.data is not None or options.stats or options.table or options.plan or flags_of(options):
        return
    from octavo.pipeline.request import RecipeRequest
    from octavo.tuning.measure import quick_speed

    _, sheet = RecipeRequest.of(None, options.target, {}).resolve(static=False)
    if options.effort == "plain" or not sheet.runs_here:
        return

    found = quick_speed(options.model, options.output, options.threads)
    if found is not None and found < 1:
        console.note(f"{_slower(found)}; with --data other ways are tried")


def _slower(speed: float) -> str:
    how = "slower" if speed < 0.995 else "no faster"
    return f"{how} than float on this machine: {speed:.2f} × its speed"


def _report(options: argparse.Namespace, result: Result, output: str) -> None:
    """Write what was tried and what came out, as the suffix says."""
    from octavo.reporting.html import details, report
    from octavo.reporting.plan_tables import plan_table
    from octavo.reporting.summary import markdown, summary
    from octavo.reporting.trial_tables import trials_markdown

    choice = result.choice
    full = details.full(result, output) if Path(options.report).suffix.lower() in (".html", ".json") else {}
    title = Path(output).name if choice else f"{Path(options.model).name} → {Path(output).name}"
    tried = f"\n\n{trials_markdown(choice.to_dict())}" if choice is not None else ""
    first = f"{choice}\n\n" if choice is not None else ""
    write_report(
        options.report,
        full,
        page=lambda: report(full),
        markdown=lambda: markdown(result, title) + tried,
        text=lambda: f"{first}{summary(result)}\n\n{plan_table(result.plan, tensors=True)}",
    )


VERB = Verb(
    name="quantize",
    summary="quantize a model",
    description="""\
Quantize a model. With --data a few ways are tried (static, mixed, dynamic,
compressed weights), compared with float on samples that calibration has not
seen, and timed; the best is written. Flags that fix the recipe, or --effort
plain, take one way. Without --data ranges of activations are found while the
model runs (dynamic). Where a requirement (--max-drop, --min-sqnr, --min-speed,
--max-size) is not met, the result goes to OUT.best.onnx and the exit code is 1.
If MODEL is a folder with the parts of a model (encoder, decoder, tokenizer, …),
variants of all parts are written, each compared with float and timed.""",
    makes_file=True,
    examples=(
        "octavo quantize model.onnx --data calib.npz",
        "octavo quantize model.onnx -o model.int8.onnx --data calib.npz --effort plain",
        "octavo quantize model.onnx -o out.onnx --data images/ --preprocess imagenet --threads 4",
        "octavo quantize model.onnx -o out.onnx --data 'calib/*.npz' --scale 255 --layout nhwc",
        "octavo quantize model.onnx -o out.onnx --data val/ --evaluate classification --labels val.csv"
        " --max-drop 0.5%",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --min-sqnr 25 --time-limit 120",
        "octavo quantize bert.onnx -o bert.int8.onnx --dynamic",
        "octavo quantize speech.onnx -o speech.int8.onnx --dynamic --compressed rest",
        "octavo quantize model.onnx -o small.onnx --compressed all",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --exclude 'op:Softmax' --exclude '/head/*'",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --method percentile:99.99",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --recipe recipe.yaml --report report.md",
        "octavo quantize model.onnx -o out.onnx --stats model.stats",
        "octavo quantize llm.onnx -o llm.int4.onnx --weights int4",
        "octavo quantize llm.onnx -o out.onnx --weights int4 --data texts.txt --tokenizer tokenizer.json",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --steps equalize,rounding,bias-correction",
        "octavo quantize my-model/ -o my-model-web/ --data texts.txt",
        "octavo quantize whisper/ -o out/ --variants auto --part encoder_model=fp16 --data speech.npz",
    ),
    arguments=_arguments,
    run=_run,
)
