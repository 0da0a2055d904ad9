"""``octavo qat``: a model trained with fake quantization becomes one that computes with integers."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.cli.console import Console
from octavo.cli.data import add_data, data_of
from octavo.cli.paths import check_outputs, default_output, model_outputs, shown
from octavo.cli.verb import Answer, Verb


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the trained ONNX model; its file is never touched")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where the integer model goes (default: MODEL.int8.onnx)"
    )
    parser.add_argument(
        "--format",
        choices=("qdq", "qoperator", "integer"),
        default="qdq",
        help="the output format (default: qdq)",
    )
    parser.add_argument(
        "--whole-types",
        action="store_true",
        help="let activations trained on a part of their type (0 … 127 of uint8) use all of it: faster",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="nodes that stay float; may be repeated",
    )
    parser.add_argument("--no-verify", action="store_true", help="do not check, load and run the result")
    add_data(parser)


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    options.output = options.output or default_output(options.model, "int8")
    check_outputs(options, model_outputs(options))
    result = octavo.convert_qat(
        options.model,
        data_of(options),
        output=options.output,
        style=options.format,
        exact=not options.whole_types,
        exclude=tuple(options.exclude),
        samples=options.samples,
        verify=not options.no_verify,
        progress=console.progress,
    )
    beside = Path(f"{options.output}.data")
    written = [shown(path) for path in (options.output, beside) if Path(path).exists()]
    checked = " (not verified)" if options.no_verify else ""
    return Answer(
        f"{result.summary()}\nwritten: {', '.join(written)}{checked}",
        {"written": written, "verified": not options.no_verify, **result.to_dict()},
    )


VERB = Verb(
    name="qat",
    summary="turn a model trained with fake quantization into integers",
    description="""\
Convert a quantization-aware trained model. The trained scales and zero points
stay as they are; weights become integers and biases int32. Read are pairs of
QuantizeLinear and DequantizeLinear, FakeQuant operators and chains of Div,
Round, Clip, Mul. --data is asked only for ranges that training left open.""",
    examples=(
        "octavo qat trained.onnx -o model.int8.onnx",
        "octavo qat trained.onnx -o model.int8.onnx --format qoperator --data calib.npz",
        "octavo qat trained.onnx -o model.int8.onnx --whole-types",
    ),
    arguments=_arguments,
    run=_run,
    makes_file=True,
)
