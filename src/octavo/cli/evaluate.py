"""``octavo evaluate``: the accuracy of a model, and of quantized ones beside it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, add_engine, count, data_of, engine_options, given_flags, paths_of
from octavo.cli.paths import check_outputs, check_report, shown, write_report
from octavo.cli.requirements import add_gates, limits_of, with_gates
from octavo.cli.tasks import TASK_NAMES, add_truth, task_options
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.evaluation.scores import Evaluation
    from octavo.tuning.gates import Gate


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; of several, the reference")
    parser.add_argument(
        "others",
        metavar="QUANTIZED",
        nargs="*",
        help="further models, each compared with the first on the same samples",
    )
    parser.add_argument(
        "--task",
        default="classification",
        metavar="TASK",
        help=f"{', '.join(TASK_NAMES)}, or FILE.py:FUNCTION (default: classification)",
    )
    add_data(parser, required=True)
    add_truth(parser)
    add_gates(parser)
    add_engine(parser)
    more = parser.add_argument_group("more")
    more.add_argument("--per-class", metavar="N", type=count, help="list this many classes, the worst first")
    more.add_argument("--report", metavar="FILE", help="write the result, as .html, .md, .txt or .json")


def _run(options: argparse.Namespace, console: Console) -> Answer:
    from octavo.evaluation.evaluator import evaluate, evaluate_several

    check_report(options.report)
    check_outputs(options, {"--report": options.report})
    _check(options)
    batch, options.batch = options.batch, None
    settings: dict[str, Any] = {
        "samples": options.samples,
        "progress": console.progress,
        "batch": batch,
        **engine_options(options),
        **task_options(options, options.task),
    }
    data = _data(options)
    results = (
        evaluate_several([options.model, *options.others], data, options.task, **settings)
        if options.others
        else (evaluate(options.model, data, options.task, **settings),)
    )
    answer, gates = _answer(results, options), _gates(options, results)
    if options.report is not None:
        _write(options, results, gates)
        answer = Answer(f"{answer.text}\n\nwritten: {shown(options.report)}", answer.data)
    return with_gates(answer, gates)


def _check(options: argparse.Namespace) -> None:
    if options.column is not None and options.task != "agreement":
        raise RecipeError("--column names no label; write --columns TEXT,LABEL.")
    limits = limits_of(options)
    names = ", ".join(f"--{name.replace('_', '-')}" for name in limits)
    if limits and not options.others:
        raise RecipeError(f"{names} compares with float; give two models: octavo evaluate FLOAT QUANTIZED.")
    if "min_sqnr" in limits and options.task != "agreement":
        raise RecipeError("--min-sqnr compares outputs; use it with --task agreement, or octavo compare.")
    if "max_drop" in limits and options.task == "agreement":
        raise RecipeError("--max-drop needs a task with labels, and agreement has none; use --min-sqnr.")


def _data(options: argparse.Namespace) -> Any:
    """Return what the flags of data say; for labelled data, its place."""
    if options.task == "agreement":
        return data_of(options)
    if given := given_flags(options, ("layout",)):
        raise RecipeError(f"{given[0]} has no meaning for labelled data; transpose the arrays first.")
    named = paths_of(options.data)
    if not isinstance(named, str):
        raise RecipeError(f"The task {options.task} takes its data from one place, not from {len(named)}.")
    return named


def _answer(results: tuple[Evaluation, ...], options: argparse.Namespace) -> Answer:
    from octavo.reporting.evaluation_tables import evaluation_table, evaluations_table

    plain = [result.to_dict() for result in results]
    if len(plain) == 1:
        return Answer(evaluation_table(plain[0], classes=options.per_class or 0), plain[0])
    data = {"schema": 1, "kind": "evaluations", "reference": options.model, "evaluations": plain}
    return Answer(evaluations_table(plain), data)


def _write(options: argparse.Namespace, results: tuple[Evaluation, ...], gates: list[Gate]) -> None:
    from octavo.reporting.evaluation_tables import evaluation_markdown, evaluation_table, evaluations_table
    from octavo.reporting.html import report

    plain = [result.to_dict() for result in results]
    models = options.others or [options.model]
    listed = {"gates": [gate.to_dict() for gate in gates]}
    pages = [part for model, data in zip(models, plain, strict=True) for part in (model, {**data, **listed})]
    write_report(
        options.report,
        with_gates(_answer(results, options), gates).data,
        page=lambda: report(*pages),
        markdown=lambda: "\n".join(
            evaluation_markdown(data, f"Evaluation of {Path(data['model']).name}") for data in plain
        ),
        text=lambda: "\n\n".join(
            [evaluations_table(plain)]
            if len(plain) > 1
            else [evaluation_table(plain[0], classes=len(plain[0]["per_class"]["model"]))]
        ),
    )


def _gates(options: argparse.Namespace, results: tuple[Evaluation, ...]) -> list[Gate]:
    limits = limits_of(options)
    if not limits:
        return []
    from octavo.tuning.gates import check_gates
    from octavo.tuning.trial import Score

    found: list[Gate] = []
    for path, result in zip(options.others, results, strict=True):
        score = None
        if result.against_scores:
            own, other = result.scores[0], result.against_scores[0]
            score = Score(own.name, own.value, other.value, own.higher_is_better, own.percent)
        data = data_of(options) if options.task == "agreement" else None
        found += check_gates(
            options.model,
            path,
            limits,
            data=data,
            samples=options.samples,
            threads=options.threads,
            score=score,
        )
    return found


VERB = Verb(
    name="evaluate",
    summary="measure how accurate a model is, alone or beside others",
    description="""\
Measure a model on labelled data. Further models are compared with the first on
the same samples, and each difference has a 95 % confidence interval. Without
labels, --task agreement says how often two models answer alike. With --max-drop,
--min-sqnr, --min-speed or --max-size the exit code is 1 where one is not met.""",
    examples=(
        "octavo evaluate model.onnx --data val/ --preprocess imagenet",
        "octavo evaluate model.onnx model.int8.onnx --data val/ --preprocess imagenet --labels val.csv",
        "octavo evaluate model.onnx a.onnx b.onnx --data val.npz --scale 255 --max-drop 1%",
        "octavo evaluate yolo.onnx yolo.int8.onnx --task detection --data val/ --annotations val.json",
        "octavo evaluate bert.onnx bert.int8.onnx --task text-classification --data dev.tsv",
        "octavo evaluate model.onnx model.int8.onnx --task agreement --data calib.npz",
        "octavo evaluate model.onnx --task metrics.py:mean_iou --data test.npz",
    ),
    arguments=_arguments,
    run=_run,
)
