"""``octavo inspect``: how a model is quantized."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.verb import Answer, Verb


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, quantized or not, by whatever tool")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.reporting.inspection import inspection_table

    inspection = octavo.inspect(options.model)
    return Answer(inspection_table(inspection), inspection.to_dict())


VERB = Verb(
    name="inspect",
    summary="show how a model is quantized: types, granularity, counts, size by part",
    description="""\
Show how a model is quantized: which types and granularity its tensors have,
how many nodes of each op type are quantized or float, and where its bytes are.
Works on float models, and on those that other tools have quantized.""",
    examples=("octavo inspect model.int8.onnx", "octavo inspect model.int8.onnx --json"),
    arguments=_arguments,
    run=_run,
)
