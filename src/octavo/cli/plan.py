"""``octavo plan``: a dry run that lists what would be quantized, and what would stay float and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from octavo.cli.console import Console
from octavo.cli.data import add_threads
from octavo.cli.paths import check_outputs, shown
from octavo.cli.selection import add_selection, changes_of
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model")
    parser.add_argument(
        "-o",
        "--output",
        metavar="PLAN",
        help="write the plan as JSON: read it, edit it, apply it; - is standard output",
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor as well")
    add_selection(parser)
    add_threads(parser)
    parser.add_argument(
        "--no-prepare", action="store_true", help="take the model as it is: no shapes, no folding"
    )


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.reporting.plan_tables import plan_table

    as_text = options.output == "-"
    if options.output is not None and Path(options.output).suffix.lower() not in ("", ".json"):
        raise RecipeError(
            f"-o {options.output}: a plan is written as JSON; choose a name that ends in .json."
        )
    check_outputs(options, {"-o": None if as_text else options.output}, texts=True)
    more: dict[str, Any] = {"prepare": None} if options.no_prepare else {}
    plan = octavo.plan(
        options.model,
        options.recipe,
        target=options.target,
        static=not options.dynamic,
        **changes_of(options),
        threads=options.threads,
        **more,
    )
    text = plan_table(plan, tensors=options.tensors)
    if options.output is not None:
        if as_text:
            return Answer(plan.to_json().rstrip("\n"), plan.to_dict())
        plan.save(options.output)
        text += f"\n\nwritten: {shown(options.output)}"
    return Answer(text, plan.to_dict())


VERB = Verb(
    name="plan",
    summary="list what would be quantized and what would stay in float, and why",
    description="""\
A dry run: says what quantize would do to each node and tensor, without data and
without writing a model. A plan is JSON with one entry a line: save it with -o,
compare two, edit a line, and carry it out with 'octavo quantize --plan'.""",
    examples=(
        "octavo plan model.onnx",
        "octavo plan model.onnx --dynamic --op-types MatMul",
        "octavo plan model.onnx --threads 16",
        "octavo plan model.onnx -o plan.json --exclude '/head/*'",
        "octavo quantize model.onnx -o out.onnx --data calib.npz --plan plan.json",
    ),
    arguments=_arguments,
    run=_run,
)
