"""The command line of ``matmul_nbits_quantizer``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from octavo.quantization._command import add_flag

_METHODS = ("default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq")


def ort_convert_str_to_bool(value: Any) -> bool:
    """Whether a text says true or 1."""
    return str(value).lower() in ("true", "1")


def parse_key_value_pair(s: str) -> tuple[str, int]:
    """Return an op type and an axis, written ``Gather:1``."""
    key, value = s.split(":")
    return key, int(value)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m octavo.quantization.matmul_nbits_quantizer",
        description="Quantize the weights of MatMul and Gather nodes to 2, 4 or 8 bits, block by block.",
    )
    add = made.add_argument
    add("--input_model", required=True, help="the float model")
    add("--output_model", required=True, help="where to write the result; must not exist")
    add("--block_size", type=int, default=32, help="weights to a scale (default: 32)")
    add("--quant_method", default="default", choices=_METHODS, help="the algorithm")
    add("--bits", type=int, default=4, help="bits of a weight: 2, 4 or 8 (default: 4)")
    without = "without zero points (default: true; k_quant and hqq use zero points unless asked)"
    add_flag(made, "--symmetric", default=None, help=without)
    add("--accuracy_level", type=int, help="what the kernel computes in: 1 float32, 2 float16, 4 int8")
    add("-v", "--verbose", action="store_true", help="say what stays float, and why")
    add("--nodes_to_exclude", nargs="+", default=[], metavar="NODE", help="nodes that stay float")
    add("--nodes_to_include", nargs="+", default=None, metavar="NODE", help="quantize these nodes alone")
    add("--quant_format", default="QOperator", choices=("QOperator", "QDQ"), help="the format of the result")
    add("--op_types_to_quantize", nargs="+", default=["MatMul"], choices=("MatMul", "Gather"), metavar="OP",
        help="MatMul, Gather (default: MatMul)")  # fmt: skip
    add("--quant_axes", nargs="+", type=parse_key_value_pair, metavar="OP:AXIS",
        help="the axis along which blocks run, such as Gather:1")  # fmt: skip
    add("--calib_dataset_name", default="cnn", help="nvidia_awq: the data to calibrate with")
    add("--tokenizer_dir", help="nvidia_awq: the tokenizer's folder")
    add("--calibration_method", choices=("awq", "awq_clip"), help="nvidia_awq: the variant")
    add("--cache_dir", default="./cache", help="nvidia_awq: where downloads go")
    return made


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    args = parser().parse_args(arguments)
    args.symmetric_given = args.symmetric is not None
    args.symmetric = True if args.symmetric is None else args.symmetric
    return args
