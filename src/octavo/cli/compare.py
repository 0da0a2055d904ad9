"""``octavo compare``: where a quantized model is wrong, why, and what to change."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.core import scratch
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.comparison import Comparison


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FLOAT", help="the float model")
    parser.add_argument(
        "quantized", metavar="QUANTIZED", help="the model quantized from it, by whatever tool"
    )
    add_data(parser, required=True)
    parser.add_argument(
        "--top", metavar="N", type=count, default=10, help="lines of each table (default: 10)"
    )
    parser.add_argument("--threads", metavar="N", type=count, help="threads of the runtime")
    parser.add_argument(
        "--propose", metavar="FILE", help="write a recipe with the proposed changes, for 'quantize --recipe'"
    )
    parser.add_argument("--report", metavar="FILE", help="write the result, as .html, .md, .txt or .json")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    check_report(options.report)
    for model in (options.model, options.quantized):
        check_outputs(model, {"--propose": options.propose, "--report": options.report})
    data = data_of(options)
    if data is None:
        raise RecipeError("a comparison needs data; give --data.")
    found = octavo.compare(
        options.model,
        options.quantized,
        data,
        samples=options.samples,
        threads=options.threads,
        progress=console.progress,
    )
    text = found.table(options.top)
    if options.propose is not None:
        _propose(found, options.propose)
        text += f"\n\nwritten: {shown(options.propose)}"
    if options.report is not None:
        _report(found, options.report, options.quantized)
        text += f"\n\nwritten: {shown(options.report)}"
    return Answer(text, found.to_dict())


def _propose(found: Comparison, path: str) -> None:
    if Path(path).suffix.lower() not in (".yaml", ".yml", ".json"):
        raise RecipeError(f"--propose {path}: a recipe is written as .yaml or .json.")
    with scratch.folder() as folder:
        draft = Path(folder) / f"recipe{Path(path).suffix.lower()}"
        found.proposal().save(draft)
        write_text(path, draft.read_text(encoding="utf-8"))


def _report(found: Comparison, path: str, quantized: str) -> None:
    match Path(path).suffix.lower():
        case ".html":
            from octavo.reporting.html import report

            text = report(quantized, found)
        case ".json":
            text = as_json_text(found.to_dict()) + "\n"
        case ".md":
            text = found.markdown(len(found.tensors))
        case _:
            text = found.table(len(found.tensors)) + "\n"
    write_text(path, text)


VERB = Verb(
    name="compare",
    summary="find where a quantized model is wrong, why, and what to change",
    description="""\
Compare a float model with its quantized twin, tensor by tensor, on data. Tensors
are matched by structure, so that models of other tools can be compared too. The
error of each operator alone is told apart from what its inputs bring along, so
that culprits are named and not their victims.""",
    examples=(
        "octavo compare model.onnx model.int8.onnx --data calib.npz",
        "octavo compare model.onnx model.int8.onnx --data calib.npz --propose better.yaml",
        "octavo quantize model.onnx -o better.onnx --data calib.npz --recipe better.yaml",
        "octavo compare model.onnx model.int8.onnx --data calib.npz --top 20 --report compare.md",
    ),
    arguments=_arguments,
    run=_run,
)
