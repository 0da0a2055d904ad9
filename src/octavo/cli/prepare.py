"""``octavo prepare``: infer shapes, fold normalization and remove what is unused before quantization."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from octavo.cli.console import Console
from octavo.cli.paths import check_outputs, default_output, model_outputs, shown
from octavo.cli.verb import Answer, Verb

_SKIPS = {
    "onnx_shapes": ("--skip-shapes", "no ONNX shape inference"),
    "fold_constants": ("--skip-constants", "leave nodes that depend on constants alone as they are"),
    "fold_batch_norm": ("--skip-batch-norm", "do not fold BatchNormalization into the layer before"),
    "fuse": ("--skip-fusions", "do not look for Gelu, LayerNormalization and HardSwish"),
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; its file is never touched")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="where the prepared model goes (default: MODEL.prepared.onnx)"
    )
    for name, (flag, text) in _SKIPS.items():
        parser.add_argument(flag, dest=name, action="store_false", help=text)
    parser.add_argument(
        "--opset", metavar="N", type=int, help="convert to this opset if the model's is older"
    )
    parser.add_argument(
        "--runtime-optimization",
        action="store_true",
        help="let ONNX Runtime apply its basic graph optimization first",
    )
    parser.add_argument(
        "--symbolic-shapes",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="infer shapes with symbols; by default only where ranks are unknown and sympy is installed",
    )


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.model.graph import query

    options.output = options.output or default_output(options.model, "prepared")
    check_outputs(options, model_outputs(options))
    wanted = octavo.PrepareOptions(
        opset=options.opset,
        runtime_optimization=options.runtime_optimization,
        symbolic_shapes=options.symbolic_shapes,
        **{name: getattr(options, name) for name in _SKIPS},
    )
    prepared = octavo.prepare(options.model, wanted)
    if options.opset is not None and query.opset(prepared.model) > options.opset:
        console.note(
            f"the model keeps opset {query.opset(prepared.model)}: models are not converted to older opsets"
        )
    written = [shown(path) for path in prepared.save(options.output)]
    report = prepared.report
    data = {
        "written": written,
        "changes": [asdict(change) for change in report.changes],
        "notes": list(report.notes),
    }
    return Answer(f"{report}\nwritten: {', '.join(written)}", data)


VERB = Verb(
    name="prepare",
    summary="infer shapes, fold and tidy up, without quantizing",
    description="""\
Prepare a model: shapes inferred, constants computed, BatchNormalization folded,
Gelu and LayerNormalization recognized. quantize does this by itself; as a verb
it is there to look at the outcome, or to keep the float model that a quantized
one is compared with. Preparing a prepared model changes nothing.""",
    examples=(
        "octavo prepare model.onnx -o model.prepared.onnx",
        "octavo prepare model.onnx -o model.prepared.onnx --opset 21",
        "octavo prepare model.onnx -o model.prepared.onnx --skip-batch-norm --runtime-optimization",
    ),
    arguments=_arguments,
    run=_run,
    makes_file=True,
)
