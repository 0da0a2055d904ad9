"""The flags that say what the right answers of a task are, shared by all verbs that evaluate one."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.cli.data import count, preprocess_of

TASK_NAMES = (
    "classification", "detection", "text-classification", "similarity", "perplexity", "agreement",
)  # fmt: skip
_FROM_DATA = ("scale", "size", "tokenizer", "max_length")
_OWN = (
    "labels", "classes", "offset", "annotations", "categories", "decoder", "numbering", "columns",
    "window", "pooling",
)  # fmt: skip


def add_truth(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what the right answers are, and how outputs are read."""
    truth = parser.add_argument_group("truth")
    truth.add_argument(
        "--labels", metavar="FILE", help="labels of images, clips or arrays: .csv, .tsv, .txt or .json"
    )
    truth.add_argument("--classes", metavar="FILE", help="class names in the order of the model's outputs")
    truth.add_argument("--offset", metavar="N", type=int, help="added to each label")
    truth.add_argument("--annotations", metavar="FILE", help="COCO annotations of the images")
    truth.add_argument("--categories", metavar="A,B", type=_names, help="count these COCO categories only")
    truth.add_argument(
        "--columns", metavar="A,B", type=_names, help="columns of a text file: texts, then label"
    )
    reading = parser.add_argument_group("how outputs are read")
    reading.add_argument(
        "--decoder", metavar="NAME", help="how a detector's outputs are read (default: auto)"
    )
    reading.add_argument("--numbering", metavar="KIND", help="what class numbers mean: auto, order or id")
    reading.add_argument("--pooling", metavar="KIND", help="token vectors to one: auto, mean, first or none")
    reading.add_argument(
        "--window", metavar="N", type=count, help="tokens in a window of text (default: 512)"
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def task_options(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Return the flags that are options of a task."""
    names = _OWN if task == "agreement" else (*_OWN, *_FROM_DATA)
    found = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if task != "agreement" and (preprocess := preprocess_of(options)) is not None:
        found["preprocess"] = preprocess
    return found
