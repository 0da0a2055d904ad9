"""``python -m octavo.quantization.calibrate``: a model and samples go in, tables of ranges come out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo import calibration
from octavo.calibration import tables
from octavo.calibration.methods import need_of
from octavo.core import affine
from octavo.core.files import read_json, write_text
from octavo.core.qtypes import UINT8
from octavo.core.scheme import Entropy, Method, MinMax, Percentile, Scheme
from octavo.core.stats import Range
from octavo.data.readers.image_files import images, images_below
from octavo.errors import DataError, TableError
from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.ops.listed import GIVEN
from octavo.quantization._calibrater import float_tensors
from octavo.quantization._command import exit_code

PARAMETERS = "quantization_params.json"

_MODES: dict[str, Method] = {
    "naive": MinMax(average=True),
    "minmax": MinMax(),
    "entropy": Entropy(),
    "percentile": Percentile(),
}
_MOST_BYTES = 1 << 28  # of a file of parameters


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m octavo.quantization.calibrate",
        description=(
            "Calibrate a model on a folder of images or a file of tensors. Writes the ranges as"
            " calibration.json, .flatbuffers and .cache, and zero points and scales, which quantize takes as"
            f" input_quantization_params and output_quantization_params, as {PARAMETERS}."
        ),
    )
    add = made.add_argument
    add("--model_path", required=True, metavar="MODEL", help="the float model")
    add(
        "--dataset_path",
        required=True,
        metavar="PATH",
        help="a folder of images, or a TensorProto file (.pb)",
    )
    add("--output_path", default=".", metavar="FOLDER", help="where the tables go (the working folder)")
    add("--dataset_size", type=int, default=0, metavar="N", help="use at most this many samples; 0 means all")
    add(
        "--data_preprocess",
        metavar="NAME",
        help="how an image becomes an input: preprocess_method1, preprocess_method2, imagenet, …",
    )
    add(
        "--calib_mode",
        choices=list(_MODES),
        default="naive",
        help="naive: minimum and maximum, averaged over the samples; or another method",
    )
    add(
        "--op_types",
        nargs="+",
        default=list(GIVEN),
        metavar="OP",
        help="whose inputs and outputs are measured",
    )
    return made


def _data(path: Path, preprocess: str | None) -> Any:
    """Return the samples: images where there are some, else whatever the path holds."""
    chosen = None if preprocess in (None, "None", "none", "") else preprocess
    if not path.exists():
        raise DataError(f"There is no calibration data at {path}; give an existing file or folder.")
    if chosen is not None or (path.is_dir() and images_below(path)):
        return images(path, chosen)
    return str(path)


def measured(
    model_path: str | Path, data: Any, method: Method, limit: int | None, ops: Sequence[str]
) -> dict[str, Range]:
    """Return the ranges of the float tensors at some operators, by a method."""
    model = io.load(Path(model_path))
    shapes.infer(model)
    normalize(model)
    names = list(float_tensors(model, ops))
    if not names:
        raise DataError(f"{model_path} has no {' or '.join(ops)} to calibrate; name others with --op_types.")
    stats = calibration.collect(model, dict.fromkeys(names, need_of(method)), data, limit=limit)
    return calibration.ranges(stats, dict.fromkeys(names, Scheme(UINT8, method=method)))


def parameters(ranges: Mapping[str, Range]) -> dict[str, list[Any]]:
    """``{tensor: [zero point, scale]}`` of uint8."""
    found = {name: affine.from_range(r.low, r.high, Scheme(UINT8)) for name, r in ranges.items()}
    return {name: [np.uint8(p.zero_point), np.float32(p.scale)] for name, p in found.items()}


def save_parameters(found: Mapping[str, Sequence[Any]], path: str | Path) -> None:
    """Write zero points and scales as JSON."""
    plain = {name: [int(zero), float(scale)] for name, (zero, scale) in found.items()}
    write_text(path, json.dumps(plain, indent=1) + "\n")


def load_quantization_params(path: str | Path) -> dict[str, list[Any]]:
    """Return the zero points and scales of a file, as ``quantize`` takes them."""
    try:
        content = read_json(path, _MOST_BYTES)
        return {name: [np.uint8(zero), np.float32(scale)] for name, (zero, scale) in content.items()}
    except OSError as error:
        raise TableError(f"{path} can't be read: {error.strerror}.") from error
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise TableError(f'{path} is not a file of {{"tensor": [zero point, scale]}}: {error}.') from error


def main(arguments: Sequence[str] | None = None) -> None:
    """Calibrate as the arguments say, by default those of the command line."""
    options = parser().parse_args(arguments)
    folder = Path(options.output_path)
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} for the tables; make it first.")
    data = _data(Path(options.dataset_path), options.data_preprocess)
    limit = options.dataset_size or None
    found = measured(options.model_path, data, _MODES[options.calib_mode], limit, options.op_types)
    written = tables.save_all(found, folder)
    save_parameters(parameters(found), folder / PARAMETERS)
    names = ", ".join(path.name for path in written)
    print(f"{len(found)} tensors: {names}, {PARAMETERS} in {folder}")  # noqa: T201


def run() -> int:
    """Run the command line and return its exit code."""
    return exit_code(main, parser().prog)
