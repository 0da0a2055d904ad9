"""``octavo doctor``: what will be difficult about quantizing a model."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.verb import Answer, Verb


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, not quantized yet")
    add_data(parser)
    parser.add_argument("--threads", metavar="N", type=count, help="threads of the runtime")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    found = octavo.doctor(
        options.model,
        data_of(options),
        samples=options.samples,
        threads=options.threads,
        progress=console.progress,
    )
    return Answer(str(found), found.to_dict())


VERB = Verb(
    name="doctor",
    summary="say what will be hard about quantizing a model",
    description="""\
Look at a model before it is quantized: outliers, masks, joins of unlike ranges,
missing shapes, the opset, dead weights, parts that are quantized already; with
--data also the calibration data and the activations. Each finding says how bad
it is, where, and what to do.""",
    examples=("octavo doctor model.onnx", "octavo doctor model.onnx --data calib.npz --samples 32"),
    arguments=_arguments,
    run=_run,
)
