"""The flags that say what data to run a model on, shared by all verbs that do; the data that they name."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.calibration.data import Data
    from octavo.calibration.readers.made_up import RandomData
    from octavo.calibration.readers.text import Text

PRESET_NAMES = (
    "imagenet", "imagenet-lite", "yolo-letterbox", "unit", "pixels",
    "preprocess_method1", "preprocess_method2",
)  # fmt: skip
_RANDOM_SAMPLES = 8
_TEXTS = (".txt", ".jsonl", ".csv", ".tsv")
_DETAILS = ("samples", "preprocess", "size", "batch", "tokenizer", "max_length", "column")


def add_stride(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Which values histograms count."""
    parser.add_argument(
        "--stride",
        metavar="N",
        type=count,
        help="histograms count every N-th value (1: all; default: a lattice of large maps)",
    )


def add_data(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """The flags."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        metavar="DATA",
        required=required,
        help="what to run the model on: an .npz, .npy or .pb file, a .zip or .tar archive, a folder of such "
        "files, of test_data_set_* or of pictures, a text file, module:function, or random:N",
    )
    group.add_argument("--samples", metavar="N", type=count, help="use at most this many samples")
    group.add_argument(
        "--preprocess",
        metavar="NAME",
        help=f"how a picture becomes an input: {', '.join(PRESET_NAMES)}, or module:function",
    )
    group.add_argument(
        "--size", metavar="WxH", type=_size, help="size of pictures (default: the model's, or the preset's)"
    )
    group.add_argument("--batch", metavar="N", type=count, help="samples in one feed (default: 1)")
    group.add_argument("--tokenizer", metavar="FILE", help="the tokenizer.json that turns texts into ids")
    group.add_argument(
        "--max-length", metavar="N", type=count, help="most tokens of a text (default: the model's, or 128)"
    )
    group.add_argument(
        "--column", metavar="NAME", help="the column of a .jsonl, .csv or .tsv file (default: text)"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """The flag that says with how many threads a model will run."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=count,
        help="threads that the model will run with: with a dozen other rules hold (default: few)",
    )


def count(text: str) -> int:
    """A whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; give 1 or more")
    return value


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.lower())
    if match is None or not int(match[1]) or not int(match[2] or 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write WIDTHxHEIGHT, for example 640x480")
    return int(match[1]), int(match[2] or match[1])


def data_of(options: argparse.Namespace) -> Data | None:
    """The data that the flags name, or None without ``--data``."""
    if options.data is None:
        given = [name for name in _DETAILS if getattr(options, name, None) is not None]
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise RecipeError(f"{flags} is about data, and there is none; give --data too.")
        return None
    name = str(options.data)
    if re.fullmatch(r"random(:.*)?", name) and not Path(name).exists():
        _refuse(options, ("preprocess", "size", "tokenizer", "max_length", "column"), "random data")
        return _batched(_random(name), options)
    suffix = Path(name).suffix.lower()
    if options.tokenizer is not None or suffix in _TEXTS:
        _refuse(options, ("preprocess", "size"), "text")
        return _text(name, options)
    _refuse(options, ("max_length", "column"), "data without --tokenizer")
    if options.preprocess is not None or options.size is not None:
        from octavo.calibration.readers.images import images

        return images(name, preprocess=options.preprocess, size=options.size, batch=options.batch)
    return _batched(name, options)


def _refuse(options: argparse.Namespace, names: tuple[str, ...], kind: str) -> None:
    """Raise where a flag says something that this kind of data has no use for."""
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name, None) is not None]
    if given:
        raise RecipeError(f"{', '.join(given)} has no meaning for {kind} ({options.data}); leave it out.")


def _random(name: str) -> RandomData:
    from octavo.calibration.readers.made_up import random_data

    number = name.partition(":")[2] or str(_RANDOM_SAMPLES)
    if not number.isdecimal() or int(number) < 1:
        raise RecipeError(f"--data {name} asks for no number of samples; write for example --data random:8.")
    return random_data(int(number))


def _text(name: str, options: argparse.Namespace) -> Text:
    from octavo.calibration.readers.text import text

    if options.tokenizer is None:
        raise RecipeError(f"{name} is text, which needs a tokenizer; give --tokenizer tokenizer.json.")
    return text(
        name,
        tokenizer=options.tokenizer,
        max_length=options.max_length,
        batch=options.batch,
        column=options.column,
    )


def _batched(data: Data, options: argparse.Namespace) -> Data:
    if options.batch is None:
        return data
    from octavo.calibration.readers.batches import Batched

    return Batched(data, options.batch)
