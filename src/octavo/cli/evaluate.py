"""``octavo evaluate``: is a model right, and is a quantized one still?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.engine import add_engine, engine_options
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.errors import RecipeError

TASK_NAMES = (
    "classification", "detection", "text-classification", "similarity", "perplexity", "agreement",
)  # fmt: skip
_FROM_DATA = ("preprocess", "size", "tokenizer", "max_length")
_OWN = (
    "labels", "classes", "scale", "offset", "annotations", "categories", "decoder", "numbering", "columns",
    "window", "pooling",
)  # fmt: skip


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model; of two, the reference")
    parser.add_argument(
        "other",
        metavar="QUANTIZED",
        nargs="?",
        help="a second model, held against the first on the same samples",
    )
    parser.add_argument(
        "--task",
        default="classification",
        metavar="TASK",
        help=f"{', '.join(TASK_NAMES)}, or FILE.py:FUNCTION (default: classification)",
    )
    add_data(parser, required=True)
    add_truth(parser)
    add_engine(parser)
    more = parser.add_argument_group("more")
    more.add_argument("--per-class", metavar="N", type=count, help="list so many classes, the worst first")
    more.add_argument("--report", metavar="FILE", help="write the result, as .html, .md, .txt or .json")


def add_truth(parser: argparse.ArgumentParser) -> None:
    """The flags that say what the right answers are, and how outputs are read."""
    truth = parser.add_argument_group("truth")
    truth.add_argument(
        "--labels", metavar="FILE", help="labels of pictures or arrays: .csv, .tsv, .txt or .json"
    )
    truth.add_argument("--classes", metavar="FILE", help="class names in the order of the model's outputs")
    truth.add_argument("--offset", metavar="N", type=int, help="added to each label")
    truth.add_argument("--scale", metavar="X", type=float, help="what whole numbers in arrays are divided by")
    truth.add_argument("--annotations", metavar="FILE", help="COCO annotations of the pictures")
    truth.add_argument("--categories", metavar="A,B", type=_names, help="count these COCO categories only")
    truth.add_argument(
        "--columns", metavar="A,B", type=_names, help="columns of a text file: texts, then label"
    )
    reading = parser.add_argument_group("how outputs are read")
    reading.add_argument(
        "--decoder", metavar="NAME", help="how a detector's outputs are read (default: auto)"
    )
    reading.add_argument("--numbering", metavar="KIND", help="what class numbers are: auto, order or id")
    reading.add_argument("--pooling", metavar="KIND", help="tokens to one vector: auto, mean, first or none")
    reading.add_argument(
        "--window", metavar="N", type=count, help="tokens in a window of text (default: 512)"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.reporting.evaluation import evaluation_table

    check_report(options.report)
    check_outputs(options.model, {"--report": options.report})
    if options.column is not None and options.task != "agreement":
        raise RecipeError("--column names no label; write --columns TEXT,LABEL.")
    model, against = (options.model, None) if options.other is None else (options.other, options.model)
    batch, options.batch = options.batch, None
    result = octavo.evaluate(
        model,
        _data(options),
        options.task,
        against=against,
        samples=options.samples,
        progress=console.progress,
        batch=batch,
        **engine_options(options),
        **task_options(options, options.task),
    )
    data = result.to_dict()
    text = evaluation_table(data, classes=options.per_class or 0)
    if options.report is not None:
        write_text(options.report, _report(options.report, data, options.other or options.model))
        text += f"\n\nwritten: {shown(options.report)}"
    return Answer(text, data)


def _data(options: argparse.Namespace) -> Any:
    """What the flags of data say; for labelled data, its place."""
    return data_of(options) if options.task == "agreement" else options.data


def task_options(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """The flags that are options of a task."""
    names = _OWN if task == "agreement" else (*_OWN, *_FROM_DATA)
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _report(path: str, data: dict[str, Any], model: str) -> str:
    from octavo.reporting.evaluation import evaluation_markdown, evaluation_table

    match Path(path).suffix.lower():
        case ".html":
            from octavo.reporting.html import report

            return report(model, data)
        case ".json":
            return as_json_text(data) + "\n"
        case ".md":
            return evaluation_markdown(data, f"Evaluation of {Path(data['model']).name}")
        case _:
            return evaluation_table(data, classes=len(data["per_class"]["model"])) + "\n"


VERB = Verb(
    name="evaluate",
    summary="measure how right a model is, alone or beside another one",
    description="""\
Measure a model on labelled data. With two models the second is held against the
first on the same samples, and each difference has a 95 % confidence interval.
Without labels, --task agreement says how often both models answer alike.""",
    examples=(
        "octavo evaluate model.onnx --data val/ --preprocess imagenet",
        "octavo evaluate model.onnx model.int8.onnx --data val/ --preprocess imagenet --labels val.csv",
        "octavo evaluate yolo.onnx yolo.int8.onnx --task detection --data val/ --annotations val.json",
        "octavo evaluate bert.onnx bert.int8.onnx --task text-classification --data dev.tsv",
        "octavo evaluate model.onnx model.int8.onnx --task agreement --data calib.npz",
        "octavo evaluate model.onnx --task metrics.py:mean_iou --data test.npz",
    ),
    arguments=_arguments,
    run=_run,
)
