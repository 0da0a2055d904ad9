"""Preparing a model from the command line::

    python -m octavo.quantization.preprocess --input model.onnx --output prepared.onnx

Flags may stand alone (``--skip_optimization``) or be followed by True or False, and mean what they say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from octavo.quantization._command import add_flag, exit_code
from octavo.quantization._names import elsewhere
from octavo.quantization.shape_inference import quant_pre_process

__all__ = ["main", "parse_arguments", "quant_pre_process"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m octavo.quantization.preprocess",
        description="Prepare a float model for quantization: shapes, optimization, opset.",
    )
    made.add_argument("--input", required=True, metavar="MODEL", help="the float model")
    made.add_argument("--output", required=True, metavar="MODEL", help="where the prepared model goes")
    add_flag(made, "--skip_optimization", help="leave out the runtime's optimization")
    add_flag(made, "--skip_onnx_shape", help="leave out ONNX shape inference")
    add_flag(made, "--skip_symbolic_shape", help="leave out symbolic shape inference")
    add_flag(made, "--auto_merge", help="merge symbolic dimensions that conflict")
    made.add_argument(
        "--int_max", type=int, default=2**31 - 1, help="what unbounded slices and the like count as"
    )
    add_flag(made, "--guess_output_rank", help="take the rank of an unknown output from its first input")
    made.add_argument("--verbose", type=int, default=0, help="how much symbolic inference tells: 0 … 4")
    add_flag(made, "--save_as_external_data", help="put weights beside the model")
    add_flag(made, "--all_tensors_to_one_file", help="put all of them into one file")
    made.add_argument("--external_data_location", metavar="NAME", help="the name of that file")
    made.add_argument(
        "--external_data_size_threshold",
        type=int,
        default=1024,
        metavar="BYTES",
        help="smaller ones stay inside",
    )
    return made


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    return parser().parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prepare a model as the arguments say, by default those of the command line."""
    given = dict(vars(parse_arguments(arguments)))
    output = given.pop("output")
    quant_pre_process(given.pop("input"), output, **given)


__getattr__ = elsewhere(__name__)


if __name__ == "__main__":
    sys.exit(exit_code(main, parser().prog))
