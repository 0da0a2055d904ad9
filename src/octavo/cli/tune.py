"""``octavo tune``: try a few ways to quantize, measure them, and keep the best."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.verb import Answer, Verb, as_json_text

if TYPE_CHECKING:
    from octavo.tuning import Demands

MISSED = 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; its file is never touched")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where the best model goes")
    add_data(parser)
    parser.add_argument("--target", metavar="NAME", default="ort-cpu", help="what the model will run on")
    parser.add_argument("--recipe", metavar="FILE", help="where static quantization starts from")
    parser.add_argument(
        "--threads",
        metavar="N",
        type=count,
        help="threads that the model will run with (default: the runtime's)",
    )
    parser.add_argument(
        "--min-sqnr", metavar="DB", type=float, help="fidelity at the outputs (default: 10 dB with data)"
    )
    parser.add_argument(
        "--min-speed", metavar="X", type=float, default=1.0, help="speed to that of float (default: 1)"
    )
    parser.add_argument("--time-limit", metavar="S", type=float, help="start no trial after so many seconds")
    parser.add_argument(
        "--seconds", metavar="S", type=float, default=3.0, help="how long to measure (default: 3)"
    )
    parser.add_argument("--report", metavar="FILE", help="write all trials, as .txt or .json")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    check_report(options.report)
    check_outputs(options.model, {"-o": options.output, "--report": options.report})
    tuned = octavo.tune(
        options.model,
        data_of(options),
        target=options.target,
        recipe=options.recipe,
        output=options.output,
        demands=_demands(options),
        samples=options.samples,
        threads=options.threads,
        time_limit=options.time_limit,
        seconds=options.seconds,
        progress=console.progress,
    )
    data, text = tuned.to_dict(), str(tuned)
    written = options.output
    if not tuned.met and tuned.result is not None:
        path = Path(options.output)
        written = str(path.with_name(f"{path.stem}.best{path.suffix}"))
        tuned.result.save(written)
    data["written"] = [shown(written)]
    text += f"\nwritten: {shown(written)}"
    if options.report is not None:
        is_json = Path(options.report).suffix.lower() == ".json"
        write_text(options.report, f"{as_json_text(data) if is_json else text}\n")
        text += f", {shown(options.report)}"
    return Answer(text, data, code=0 if tuned.met else MISSED)


def _demands(options: argparse.Namespace) -> Demands:
    import octavo

    usual = 10.0 if options.data is not None else float("-inf")
    wanted = options.min_sqnr if options.min_sqnr is not None else usual
    return octavo.Demands(min_speed=options.min_speed, min_sqnr=wanted)


VERB = Verb(
    name="tune",
    summary="try a few ways to quantize, measure them, keep the best",
    description="""\
Quantize a model in the way that measuring shows to be best: static and dynamic,
ranges by different methods, weak layers left float. Trials share one pass over
the data. They are judged by samples that were held back and by their speed
beside the float model. If none meets --min-speed and --min-sqnr, the best goes
to OUT.best.onnx and the exit code is 1.""",
    examples=(
        "octavo tune model.onnx -o model.int8.onnx --data calib.npz",
        "octavo tune model.onnx -o model.int8.onnx --data pictures/ --preprocess imagenet --threads 4",
        "octavo tune bert.onnx -o bert.int8.onnx --min-sqnr 25 --time-limit 120",
    ),
    arguments=_arguments,
    run=_run,
)
