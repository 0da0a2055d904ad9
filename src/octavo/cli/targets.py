"""``octavo targets``: what models can be quantized for."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.verb import Answer, Verb


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this target in detail")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.reporting.op_tables import target_data, target_detail, target_table
    from octavo.targets import TARGETS, target

    if options.name is None:
        return Answer(
            target_table(TARGETS.values()), {"targets": [target_data(one) for one in TARGETS.values()]}
        )
    one = target(options.name)
    return Answer(target_detail(one), {"targets": [target_data(one)]})


VERB = Verb(
    name="targets",
    summary="list what models can be quantized for",
    description="List the targets: runtimes and hardware, with the types and operators that pay there.",
    examples=("octavo targets", "octavo targets ort-cpu", "octavo targets --json"),
    arguments=_arguments,
    run=_run,
)
