"""The flags that say on what data and where a model runs, shared by all verbs that run one; that data."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.data.feeds import Data
    from octavo.data.images.preprocessing import Preset
    from octavo.data.readers.random_samples import RandomData
    from octavo.data.readers.text_files import Text


PRESET_NAMES = (
    "imagenet", "imagenet-lite", "yolo-letterbox", "unit", "pixels",
    "preprocess_method1", "preprocess_method2",
)  # fmt: skip
_RANDOM_SAMPLES = 8  # of --data random, where it names no number
_TEXTS = (".txt", ".jsonl", ".csv", ".tsv")
_ARRAYS = (".npz", ".npy", ".pb")
_OF_IMAGES = ("preprocess", "size")
_OF_ARRAYS = ("scale", "mean", "std", "layout")
_OF_TEXTS = ("max_length", "column")
_DETAILS = ("samples", "batch", "tokenizer", *_OF_IMAGES, *_OF_ARRAYS, *_OF_TEXTS)


def add_stride(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the flag that says which values histograms count."""
    parser.add_argument(
        "--stride",
        metavar="N",
        type=count,
        help="histograms count every N-th value (1: all; default: a lattice of large feature maps)",
    )


def add_data(parser: argparse.ArgumentParser, *, required: bool = False, weights: bool = False) -> None:
    """Add the flags of data; ``weights``: the size of images may be one of weights instead."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data",
        metavar="DATA",
        action="append",
        required=required,
        help="what to run the model on: .npz, .npy or .pb files, a .zip or .tar archive, a folder of such "
        "files, of test_data_set_* or of images, a text file, several of them, a pattern such as "
        "'calib/*.npz', module:function, or random:N",
    )
    group.add_argument("--samples", metavar="N", type=count, help="use at most this many samples")
    group.add_argument("--batch", metavar="N", type=count, help="samples in one feed (default: 1)")
    group.add_argument(
        "--preprocess",
        metavar="NAME",
        help=f"how an image becomes an input: {', '.join(PRESET_NAMES)}, or module:function",
    )
    group.add_argument(
        "--size",
        metavar="WxH",
        type=_size if not weights else _size_or_share,
        action=_Size,
        help="size of images (default: the model's, or the preset's)"
        + (
            "; or of all weights in blocks, as 0.2x: 2, 4 or 8 bits a layer as with --bits" if weights else ""
        ),
    )
    group.add_argument(
        "--scale", metavar="X", type=positive, help="divide the values of arrays by this, such as 255"
    )
    group.add_argument(
        "--mean",
        metavar="A,B,C",
        type=_numbers,
        help="subtract this mean, one for all channels or one for each, of values of 0 … 1 after --scale",
    )
    group.add_argument("--std", metavar="A,B,C", type=_numbers, help="divide by this standard deviation")
    group.add_argument(
        "--layout",
        choices=("nchw", "nhwc"),
        help="where arrays of images have their channels; they are transposed to what the model takes",
    )
    group.add_argument(
        "--tokenizer", metavar="PATH", help="the tokenizer.json that turns texts into ids, or its folder"
    )
    group.add_argument(
        "--max-length", metavar="N", type=count, help="longest text, in tokens (default: the model's, or 128)"
    )
    group.add_argument(
        "--column", metavar="NAME", help="the column of a .jsonl, .csv or .tsv file (default: text)"
    )


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add the flag that says with how many threads a model will run."""
    parser.add_argument(
        "--threads",
        metavar="N",
        type=count,
        help="threads that the model will run with; from a dozen on other rules apply (default: few)",
    )


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few; give 1 or more")
    return value


class _Size(argparse.Action):
    """Keep a size of images apart from one of weights."""

    def __call__(
        self, _: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        setattr(namespace, "size" if isinstance(values, tuple) else "share", values)


def _size_or_share(text: str) -> tuple[int, int] | float:
    plain = text.lower().rstrip("x×")
    return float(plain) if re.fullmatch(r"0?\.\d+", plain) else _size(text)


def positive(text: str) -> float:
    """Return a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text.lower())
    if match is None or not int(match[1]) or not int(match[2] or 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write WIDTHxHEIGHT, for example 640x480")
    return int(match[1]), int(match[2] or match[1])


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers; write for example 0.485,0.456,0.406"
        ) from None


def flag(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def given_flags(options: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Return those flags that a command line has."""
    return [flag(name) for name in names if getattr(options, name, None) is not None]


def separate_data(arguments: Sequence[str]) -> list[str]:
    """Return a command line in which each word of ``--data A B C`` has its own flag.

    A shell makes several words of ``--data calib/*.npz``. A model, and whatever is not an existing path (or
    one behind the name of a part, ``PART=PATH``), ends the list: it is an argument of the verb.
    """
    found: list[str] = []
    inside = False
    for word in arguments:
        is_flag = word.startswith("-")
        follows = inside and len(found) > 1 and found[-2] == "--data" and not is_flag
        if follows and not word.lower().endswith(".onnx") and _is_path(word):
            found += ["--data", word]
            continue
        inside = word == "--data" or (inside and not is_flag and found[-1] == "--data")
        found.append(word)
    return found


def _is_path(word: str) -> bool:
    return any(os.path.exists(one) for one in (word, word.partition("=")[2]))  # noqa: PTH110 - False if too long


def paths_of(given: str | Sequence[str]) -> str | list[str]:
    """Return the value of ``--data``: one word, or the list of several."""
    words = [given] if isinstance(given, str) else list(given)
    return words[0] if len(words) == 1 else words


def data_of(options: argparse.Namespace) -> Data | None:
    """Return the data that the flags name, or None without ``--data``."""
    if options.data is None:
        given = given_flags(options, _DETAILS)
        if given:
            raise RecipeError(f"{', '.join(given)} is about data, and there is none; give --data too.")
        return None
    named = paths_of(options.data)
    first = named if isinstance(named, str) else named[0]
    if re.fullmatch(r"random(:.*)?", first) and not Path(first).exists():
        _refuse(options, ("tokenizer", *_OF_IMAGES, *_OF_ARRAYS, *_OF_TEXTS), "random data")
        return _batched(_random(first), options)
    if options.tokenizer is not None or Path(first).suffix.lower() in _TEXTS:
        _refuse(options, (*_OF_IMAGES, *_OF_ARRAYS), "text")
        return _text(named, options)
    _refuse(options, _OF_TEXTS, "data without --tokenizer")
    if options.preprocess is None and Path(first).suffix.lower() in _ARRAYS:
        _refuse(options, ("size",), "arrays")
    if options.preprocess is not None or options.size is not None:
        return _images(named, options)
    if given_flags(options, _OF_ARRAYS):
        return _batched(_adjusted(named, options), options)
    return _batched(named, options)


def _refuse(options: argparse.Namespace, names: Sequence[str], kind: str) -> None:
    """Raise where a flag says something that this kind of data has no use for."""
    if given := given_flags(options, names):
        where = paths_of(options.data)
        shown = where if isinstance(where, str) else where[0]
        raise RecipeError(f"{', '.join(given)} has no meaning for {kind} ({shown}); leave it out.")


def _random(name: str) -> RandomData:
    from octavo.data.readers.random_samples import random_data

    number = name.partition(":")[2] or str(_RANDOM_SAMPLES)
    if not number.isdecimal() or int(number) < 1:
        raise RecipeError(f"--data {name} needs a number of samples; write for example --data random:8.")
    return random_data(int(number))


def _text(named: str | list[str], options: argparse.Namespace) -> Text:
    from octavo.data.readers.text_files import text

    if not isinstance(named, str):
        raise RecipeError(f"Texts come from one file, and --data names {len(named)}; join them into one.")
    if options.tokenizer is None:
        raise RecipeError(f"{named} is text, which needs a tokenizer; give --tokenizer tokenizer.json.")
    return text(
        named,
        tokenizer=options.tokenizer,
        max_length=options.max_length,
        batch=options.batch,
        column=options.column,
    )


def _images(named: str | list[str], options: argparse.Namespace) -> Data:
    from octavo.data.images.image_decoding import SUFFIXES
    from octavo.data.readers.image_files import images, images_below
    from octavo.data.readers.several_paths import matching

    _refuse(options, ("scale", "layout"), "images, which --preprocess turns into inputs")
    words = [named] if isinstance(named, str) else named
    found = [path for word in words for path in matching(word)]
    files: Any = found[0] if len(found) == 1 else None
    if files is None:
        listed = [file for path in found for file in (images_below(path) if path.is_dir() else [path])]
        files = [file for file in listed if file.suffix.lower() in SUFFIXES]
        if not files:
            raise RecipeError(f"--data names {len(found)} files, and none of them is an image.")
    return images(files, preprocess=preprocess_of(options), size=options.size, batch=options.batch)


def preprocess_of(options: argparse.Namespace) -> str | Preset | None:
    """Return how images become inputs: a name, or a preset with the mean and deviation of the flags."""
    given: str | None = options.preprocess
    if options.mean is None and options.std is None:
        return given
    from octavo.data.images.preprocessing import standardized

    return standardized(given, options.mean or (0.0,), options.std or (1.0,))


def _adjusted(named: str | list[str], options: argparse.Namespace) -> Data:
    """Return arrays that are scaled and transposed; images in a folder are resized and standardized."""
    from octavo.data.adjusted import arrays
    from octavo.data.images.image_decoding import SUFFIXES
    from octavo.data.readers.image_files import images_below

    path = Path(named) if isinstance(named, str) else None
    is_image = path is not None and (
        path.suffix.lower() in SUFFIXES or (path.is_dir() and bool(images_below(path)))
    )
    if is_image and options.scale is None and options.layout is None:
        return _images(named, options)
    return arrays(named, scale=options.scale, mean=options.mean, std=options.std, layout=options.layout)


def _batched(data: Data, options: argparse.Namespace) -> Data:
    if options.batch is None:
        return data
    from octavo.data.batches import Batched

    return Batched(data, options.batch)


# ---- The flags that say where calibration runs, shared by all verbs that run a model on data

ENGINES = ("auto", "serial", "processes", "ray")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser."""
    group = parser.add_argument_group("where it runs")
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="in this process, in several, or on a Ray cluster (default: several processes where it pays)",
    )
    group.add_argument("--workers", metavar="N", type=count, help="workers (default: one for each core)")
    group.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster, or 'auto' on a node of it")
    group.add_argument(
        "--threads", metavar="N", type=count, help="threads of all workers together (ray: of each)"
    )


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as arguments of a call."""
    return {name: getattr(options, name) for name in ("engine", "workers", "address", "threads")}
