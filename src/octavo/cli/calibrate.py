"""``octavo calibrate``: run a model on data once, and keep statistics of its tensors."""

from __future__ import annotations

import argparse
import re
from typing import Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, add_engine, add_stride, data_of, engine_options
from octavo.cli.paths import check_outputs, default_output, shown
from octavo.cli.selection import add_selection, changes_of
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "-o", "--output", metavar="STATS", help="where the statistics go (default: MODEL.stats)"
    )
    parser.add_argument(
        "--shard", metavar="I/N", type=_shard, help="only the I-th of N parts of the data, from 1/N to N/N"
    )
    parser.add_argument(
        "--no-prepare", action="store_true", help="take the model as it is: no shapes, no folding"
    )
    add_stride(parser)
    add_data(parser, required=True)
    add_selection(parser)
    add_engine(parser)


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shard; write 1/4 for the first of four")
    return int(match[1]), int(match[2])


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.calibration.saved import checkpoint_of
    from octavo.reporting.statistics_tables import stats_dict, stats_line

    options.output = options.output or default_output(options.model, "", ".stats")
    checkpoint = str(checkpoint_of(options.output))
    check_outputs(options, {"-o": options.output, "the checkpoint beside -o,": checkpoint})
    if options.dynamic:
        raise RecipeError("--dynamic finds ranges while the model runs: there is nothing to calibrate.")
    if options.compressed == "all":
        raise RecipeError("--compressed all quantizes nothing: there is nothing to calibrate.")
    if checkpoint_of(options.output).exists():
        console.note(f"going on from {shown(checkpoint_of(options.output))}")
    more: dict[str, Any] = {"prepare": None} if options.no_prepare else {}
    plan = octavo.plan(
        options.model,
        options.recipe,
        target=options.target,
        **changes_of(options),
        **more,
    )
    stats = octavo.calibrate(
        options.model,
        plan,
        data_of(options),
        samples=options.samples,
        shard=options.shard,
        every_method=options.method is None,
        stride=options.stride,
        output=options.output,
        progress=console.progress,
        **engine_options(options),
        **more,
    )
    return Answer(
        f"{stats_line(stats)}\nwritten: {shown(options.output)}",
        {"written": [shown(options.output)], **stats_dict(stats)},
    )


VERB = Verb(
    name="calibrate",
    summary="run a model on data and save what its tensors' values were",
    description="""\
Run the model on calibration data once and save statistics of its tensors, which
'octavo quantize --stats' uses instead of data, with any method. Statistics of
parts of the data (--shard) merge into those of the whole. A run that was cut off
goes on where its last checkpoint, beside the output, left off: say the same
command again.""",
    examples=(
        "octavo calibrate model.onnx --data calib.npz -o model.stats",
        "octavo calibrate model.onnx --data images/ --preprocess imagenet -o model.stats --workers 8",
        "octavo calibrate model.onnx --data images/ --preprocess imagenet -o part3.stats --shard 3/100",
        "octavo calibrate model.onnx --data calib.npz -o model.stats --engine ray --address auto",
        "octavo quantize model.onnx -o model.int8.onnx --stats model.stats --method entropy",
    ),
    arguments=_arguments,
    run=_run,
    makes_file=True,
)
