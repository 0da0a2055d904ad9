"""``octavo ops``: the op table."""

from __future__ import annotations

import argparse

from octavo.cli.console import Console
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError, closest


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", nargs="?", help="show this op type in detail")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.ops.table import RULES
    from octavo.reporting.op_tables import op_data, op_detail, op_table

    if options.op is None:
        return Answer(op_table(RULES.values()), {"ops": [op_data(rule) for rule in RULES.values()]})
    rules = [rule for rule in RULES.values() if rule.op_type.lower() == options.op.lower()]
    if not rules:
        known = sorted({rule.op_type for rule in RULES.values()})
        raise RecipeError(
            f"{options.op!r} has no row in the op table, so it stays float{closest(options.op, known) or '.'}"
            " See 'octavo ops' for all."
        )
    return Answer("\n\n".join(op_detail(rule) for rule in rules), {"ops": [op_data(rule) for rule in rules]})


VERB = Verb(
    name="ops",
    summary="print the op table: which operators can be quantized, and how",
    description="""\
Print the op table: each operator that can be quantized, what its inputs and
outputs are, and what it is lowered to in each format. An operator without a row
stays float.""",
    examples=("octavo ops", "octavo ops Conv", "octavo ops --json"),
    arguments=_arguments,
    run=_run,
)
