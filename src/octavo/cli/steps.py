"""``octavo steps``: what can be done to win back accuracy."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.verb import Answer, Verb


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this step in detail")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.algorithms.steps import NAMES, step_class
    from octavo.reporting.step_tables import step_data, step_detail, step_table

    if options.name is None:
        kinds = [step_class(name) for name in NAMES]
        return Answer(step_table(kinds), {"steps": [step_data(kind) for kind in kinds]})
    kind = step_class(options.name)
    return Answer(step_detail(kind), {"steps": [step_data(kind)]})


VERB = Verb(
    name="steps",
    summary="list what can win back accuracy",
    description="""\
List the steps that win back accuracy: what each does, when it runs and its
options. All but mixed-precision cost neither size nor speed. 'octavo quantize
--steps A,B' runs them.""",
    examples=("octavo steps", "octavo steps equalize", "octavo steps --json"),
    arguments=_arguments,
    run=_run,
)
