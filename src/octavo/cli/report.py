"""``octavo report``: results on one page, one alone or two side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.cli.console import Console
from octavo.cli.paths import check_outputs, make_folder, shown
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        metavar="RESULT",
        nargs="+",
        help="JSON that --report FILE.json or --json wrote, or a quantized model",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="where the page goes (.html)")
    parser.add_argument(
        "--overlay",
        metavar="FOLDER",
        help="where node data for Model Explorer goes: decision, error and time of each operator",
    )
    parser.add_argument("--title", metavar="TEXT", help="the page's title (default: the models' names)")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.reporting.html import sides, verdict, write
    from octavo.reporting.html.report_parts import readable
    from octavo.reporting.overlay import overlay_files, write_overlays

    if options.output is None and options.overlay is None:
        raise RecipeError("say where the page goes: -o report.html, or --overlay FOLDER for Model Explorer.")
    if options.output is not None and Path(options.output).suffix.lower() != ".html":
        raise RecipeError(f"-o {options.output}: a report is a page; choose a name that ends in .html.")
    found = sides(options.results)
    files = overlay_files(found, options.overlay) if options.overlay is not None else {}
    if files:
        make_folder(options.overlay, "--overlay")
    outputs = {"-o": options.output, **{f"--overlay, {file.stem}": str(file) for file in files}}
    check_outputs(options, outputs, texts=True)
    size = write(found, options.output, options.title) if options.output is not None else 0
    write_overlays(files)
    written = [shown(name) for name in ([options.output] if options.output else []) + list(map(str, files))]
    with readable():
        verdicts = [verdict.verdict(side) for side in found]
    lines = [f"{side.name or 'result'}: {said['text']}" for side, said in zip(found, verdicts, strict=True)]
    return Answer(
        "\n".join([*lines, f"written: {', '.join(written)}"]),
        {
            "written": shown(options.output) if options.output is not None else None,
            "overlay": [str(file) for file in files],
            "bytes": size,
            "results": [
                {"name": side.name, "holds": list(side.parts), "verdict": said}
                for side, said in zip(found, verdicts, strict=True)
            ],
        },
    )


VERB = Verb(
    name="report",
    summary="put results on one HTML page, one model or several side by side",
    description="""\
Make one self-contained HTML page of results: what quantize, compare, evaluate
and bench wrote with --report FILE.json, or quantized models. Results about the
same model are shown together; a second model is shown beside the first.""",
    examples=(
        "octavo report quantize.json compare.json bench.json -o report.html",
        "octavo report a.json b.json -o a-and-b.html",
        "octavo report model.int8.onnx -o report.html",
        "octavo report quantize.json compare.json bench.json --overlay overlay/",
    ),
    arguments=_arguments,
    run=_run,
)
