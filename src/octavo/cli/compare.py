"""``octavo compare``: where a quantized model is wrong, why, and what to change."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.paths import check_outputs, check_report, shown, write_report
from octavo.cli.requirements import add_requirements, limits_of, task_check, with_gates
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.comparison.comparison_result import Comparison
    from octavo.tuning.gates import Gate


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="FLOAT", help="the float model")
    parser.add_argument(
        "quantized", metavar="QUANTIZED", help="the model quantized from it, by whatever tool"
    )
    add_data(parser, required=True)
    parser.add_argument("--top", metavar="N", type=count, default=10, help="rows of each table (default: 10)")
    parser.add_argument("--threads", metavar="N", type=count, help="threads of the runtime")
    parser.add_argument(
        "--propose",
        metavar="FILE",
        help="try changes on held-back samples, and write a recipe with those that help",
    )
    parser.add_argument("--report", metavar="FILE", help="write the result, as .html, .md, .txt or .json")
    add_requirements(parser)


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo

    check_report(options.report)
    _check_recipe_name(options.propose)
    check_outputs(options, {"--propose": options.propose, "--report": options.report})
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
    result = found.to_dict()
    if options.propose is not None:
        proposal = octavo.propose(
            options.model,
            options.quantized,
            data,
            comparison=found,
            samples=options.samples,
            threads=options.threads,
            progress=console.progress,
        )
        result["proposal"] = proposal.to_dict()
        text += f"\n\n{proposal}"
        if proposal.is_better:
            proposal.save(options.propose)
            text += f"\n\nwritten: {shown(options.propose)}"
        else:
            text += f"\n\nnot written: {shown(options.propose)}, as nothing that was tried is better"
    gates = _gates(options, data)
    if options.report is not None:
        plain = with_gates(Answer(text, result), gates).data
        _report(found, plain, options.report, options.quantized)
        text += f"\n\nwritten: {shown(options.report)}"
    return with_gates(Answer(text, result), gates)


def _gates(options: argparse.Namespace, data: Any) -> Sequence[Gate]:
    if not limits_of(options):
        return ()
    from octavo.tuning.gates import check_gates

    return check_gates(
        options.model,
        options.quantized,
        limits_of(options),
        data=data,
        task=task_check(options),
        samples=options.samples,
        threads=options.threads,
    )


def _check_recipe_name(path: str | None) -> None:
    if path is not None and Path(path).suffix.lower() not in (".yaml", ".yml", ".json"):
        raise RecipeError(f"--propose {path}: a recipe is written as .yaml or .json.")


def _report(found: Comparison, result: dict[str, Any], path: str, quantized: str) -> None:
    from octavo.reporting.html import report

    write_report(
        path,
        result,
        page=lambda: report(quantized, result),
        markdown=lambda: found.markdown(len(found.tensors)),
        text=lambda: found.table(len(found.tensors)),
    )


VERB = Verb(
    name="compare",
    summary="find where a quantized model is wrong, why, and what to change",
    description="""\
Compare a float model with the one quantized from it, tensor by tensor, on data. Tensors
are matched by structure, so that models of other tools can be compared too. The
error of each operator alone is told apart from what its inputs bring along, so
that the operators that cause it are named. With --min-sqnr, --max-drop,
--min-speed or --max-size the exit code is 1 where one is not met.""",
    examples=(
        "octavo compare model.onnx model.int8.onnx --data calib.npz",
        "octavo compare model.onnx model.int8.onnx --data calib.npz --propose better.yaml",
        "octavo quantize model.onnx -o better.onnx --data calib.npz --recipe better.yaml",
        "octavo compare model.onnx model.int8.onnx --data calib.npz --top 20 --report compare.md",
    ),
    arguments=_arguments,
    run=_run,
)
