"""``octavo lint``: what a target rejects, computes wrongly or runs slowly."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from octavo.cli.console import Console
from octavo.cli.data import add_threads
from octavo.cli.paths import check_outputs, shown
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.targets import Target


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="quantized ONNX models, made by whatever tool"
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        default="ort-cpu",
        help="what it runs on (default: ort-cpu; see octavo targets)",
    )
    add_threads(parser)
    parser.add_argument(
        "--fix", metavar="OUT", help="write a copy with every fault mended that can be mended exactly"
    )
    parser.add_argument(
        "--sarif", action="store_true", help="answer in SARIF 2.1.0 on standard output, for code scanning"
    )


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.targets import target

    check_outputs(options, {"--fix": options.fix})
    sheet = target(options.target).at(options.threads)
    if len(options.models) > 1:
        return _several(options, sheet)
    model = options.models[0]
    found = octavo.lint(model, target=sheet, output=options.fix)
    text = str(found)
    if not found.findings and not octavo.inspect(model).quantized_ops:
        text += "\nthe model is float: nothing in it is quantized, so only its float operators were checked"
    if options.fix is not None:
        text += f"\nwritten: {shown(options.fix)}"
    if options.sarif:
        return Answer(as_json_text(found.to_sarif()), found.to_sarif(), code=1 if found.errors else 0)
    return Answer(text, found.to_dict(), code=1 if found.errors else 0)


def _several(options: argparse.Namespace, sheet: Target) -> Answer:
    """Check one model after the other; the exit code is that of the worst."""
    import octavo

    if options.fix is not None or options.sarif:
        raise RecipeError("--fix and --sarif are about one model; run octavo lint for each.")
    found = [octavo.lint(model, target=sheet) for model in options.models]
    data = {"schema": 1, "kind": "lints", "models": [one.to_dict() for one in found]}
    return Answer("\n\n".join(map(str, found)), data, code=1 if any(one.errors for one in found) else 0)


VERB = Verb(
    name="lint",
    summary="find what a target rejects, computes wrongly or runs slowly, and fix it",
    description="""\
Check a quantized model against the datasheet of a target: types, zero points,
bias scales, channel axes, conversions that do not fuse, operators without a
kernel. Each finding has a rule, a node, a consequence and a fix. Works on
models of other tools. The exit code is 1 where an error is left.""",
    examples=(
        "octavo lint model.int8.onnx",
        "octavo lint model.int8.onnx --target tensorrt",
        "octavo lint model.int8.onnx --fix better.onnx",
        "octavo lint model.int8.onnx --sarif",
    ),
    arguments=_arguments,
    run=_run,
)
