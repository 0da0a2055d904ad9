"""Weights of matrix products and lookups in 2, 4 or 8 bits, block by block; also a command line.

``python -m octavo.quantization.matmul_nbits_quantizer --input_model m.onnx --output_model q.onnx``
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from onnx import ModelProto

from octavo.core.blocks import BlockScheme
from octavo.errors import RecipeError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare.unit_axes import squeeze_weights
from octavo.quantization._command import add_flag, exit_code, new_output
from octavo.quantization._names import elsewhere
from octavo.quantization._nbits_nodes import (
    DefaultWeightOnlyQuantizer,
    HQQWeightOnlyQuantizer,
    get_initializer,
    is_divisible,
    transpose_packed_int4_matrix,
)
from octavo.quantization._streamed import (
    StreamedModel,
    as_constant_nodes,
    input_names,
    opened,
    source_of,
    tell,
)
from octavo.quantization._types import QuantFormat
from octavo.quantization._weight_only import Loader, NBits, algorithm_of, quantize, special
from octavo.quantization._weight_only_configs import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    NVAWQWeightOnlyQuantConfig,
    NVAWQWeightOnlyQuantizer,
    ObservedWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)

__all__ = [
    "DefaultWeightOnlyQuantConfig", "DefaultWeightOnlyQuantizer", "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig", "HQQWeightOnlyQuantizer", "KQuantWeightOnlyQuantConfig",
    "MatMulNBitsQuantizer", "NVAWQWeightOnlyQuantConfig", "NVAWQWeightOnlyQuantizer",
    "ObservedWeightOnlyQuantConfig", "QuantFormat",
    "RTNWeightOnlyQuantConfig", "WeightOnlyQuantConfig", "get_initializer", "is_divisible",
    "ort_convert_str_to_bool", "parse_args", "parse_key_value_pair", "transpose_packed_int4_matrix",
]  # fmt: skip

_BITS, _SIZE = 4, 128  # stock's defaults
_METHODS = ("default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq")


class MatMulNBitsQuantizer:
    """Quantizes the weights of a model; the result is in ``model`` after ``process()``.

    A value of ``algo_config`` that is not its default counts more than the one given here.
    """

    def __init__(
        self,
        model: ModelProto | str,
        bits: int = _BITS,
        block_size: int = _SIZE,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: list[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: tuple[str, ...] | None = None,
        quant_axes: tuple[tuple[str, int], ...] | None = None,
        channel_wised_quantize: bool = False,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        self.model_path = str(model) if isinstance(model, str | os.PathLike) else None
        self.model = opened(model)
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self.nodes_to_include = set(nodes_to_include) if nodes_to_include else None
        self.node_quantizer: Any = None
        if algo_config is None:
            algo_config = DefaultWeightOnlyQuantConfig(
                block_size=block_size,
                is_symmetric=is_symmetric,
                accuracy_level=accuracy_level,
                quant_format=quant_format,
                op_types_to_quantize=op_types_to_quantize,
                quant_axes=quant_axes,
                bits=bits,
                channel_wised_quantize=channel_wised_quantize,
            )
        self.algo_config = algo_config
        if isinstance(algo_config, HQQWeightOnlyQuantConfig):
            self.node_quantizer = HQQWeightOnlyQuantizer(algo_config)
        elif isinstance(algo_config, DefaultWeightOnlyQuantConfig):
            self.node_quantizer = DefaultWeightOnlyQuantizer(algo_config)
        elif isinstance(algo_config, NVAWQWeightOnlyQuantConfig):
            self.node_quantizer = NVAWQWeightOnlyQuantizer(algo_config)

    def request(self) -> NBits:
        """Return the request as Octavo states it."""
        config = self.algo_config
        kind = config.algorithm
        group = kind in ("RTN", "k_quant", "GPTQ")
        size = self.block_size if group else _chosen(config, "block_size", self.block_size, _SIZE)
        scheme = BlockScheme(
            _chosen(config, "bits", self.bits, _BITS),
            size,
            kind != "HQQ" and bool(_chosen(config, "is_symmetric", self.is_symmetric, False)),
            whole_zero=kind != "HQQ",
        )
        return NBits(
            algorithm=algorithm_of(kind, config),
            steps=("awq",) if kind.lower() == "awq" else (),
            scheme=scheme,
            ops=tuple(sorted(config.op_types_to_quantize)),
            include=frozenset(self.nodes_to_include) if self.nodes_to_include is not None else None,
            exclude=frozenset(self.nodes_to_exclude),
            qdq=config.quant_format == QuantFormat.QDQ,
            per_channel=bool(getattr(config, "channel_wised_quantize", False)),
            accuracy_level=_chosen(config, "accuracy_level", self.accuracy_level, None),
            special=special(config.customized_weight_config, scheme),
            ratios=dict(getattr(config, "ratios", None) or {}),
            gather_axis=config.quant_axes.get("Gather", 1),
            grouped=group,
        )

    def int4_quant_algo(self) -> None:
        """Quantize by the configured algorithm."""
        want = self.request()
        source = self._with_matrices()
        reader = self.algo_config.calibration_data_reader
        data = Loader(reader, input_names(self.model)) if reader is not None else None
        constants = [n.outputs[0].name or "" for n in source.graph if query.is_op(n, "Constant")]
        outcome = quantize(source, want, data)
        as_constant_nodes(outcome.model, constants)
        tell(outcome.skipped)
        self.model = StreamedModel(outcome.model)

    def _with_matrices(self) -> ir.Model:
        """Return an own copy of the model, whose weights with leading axes of one are matrices."""
        model = io.load(source_of(self.model))
        included, excluded = self.nodes_to_include, self.nodes_to_exclude
        squeeze_weights(model, lambda n: n.name not in excluded and (included is None or n.name in included))
        return model

    def process(self) -> None:
        """Quantize; the result is in ``model``."""
        if isinstance(self.algo_config, NVAWQWeightOnlyQuantConfig):
            self.node_quantizer.quantize_awq(self.model_path or source_of(self.model))
        self.int4_quant_algo()


def _chosen(config: Any, name: str, given: Any, default: Any) -> Any:
    """Return a setting of the config, unless it is the default there and was given beside it."""
    own = getattr(config, name, default)
    return given if own == default else own


def _config(args: argparse.Namespace) -> WeightOnlyQuantConfig:
    style = QuantFormat[args.quant_format]
    ops = tuple(args.op_types_to_quantize)
    axes = tuple(args.quant_axes) if args.quant_axes else None
    match args.quant_method:
        case "hqq":
            return HQQWeightOnlyQuantConfig(args.block_size, args.bits, 1, style, ops, axes)
        case "rtn":
            return RTNWeightOnlyQuantConfig(None, style, ops)
        case "k_quant":
            return KQuantWeightOnlyQuantConfig(None, style, ops)
        case "gptq":
            raise RecipeError(
                "GPTQ needs calibration data, which the command line can't take; use MatMulNBitsQuantizer"
                " with GPTQWeightOnlyQuantConfig(calibration_data_reader), or --quant_method k_quant."
            )
        case "nvidia_awq":
            if not args.tokenizer_dir:
                raise RecipeError("nvidia_awq needs the folder of a tokenizer; pass --tokenizer_dir.")
            method = args.calibration_method or "awq_lite"
            return NVAWQWeightOnlyQuantConfig(
                args.tokenizer_dir, args.calib_dataset_name, args.cache_dir, method
            )
    return DefaultWeightOnlyQuantConfig(
        args.block_size, args.symmetric, args.accuracy_level, style, ops, axes, args.bits
    )


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize as the arguments say, by default those of the command line."""
    args = parse_args(arguments)
    target = new_output(args)
    symmetric = args.symmetric and (args.symmetric_given or args.quant_method not in ("k_quant", "hqq"))
    quantizer = MatMulNBitsQuantizer(
        args.input_model,
        args.bits,
        args.block_size,
        symmetric,
        args.accuracy_level,
        args.nodes_to_exclude,
        args.nodes_to_include,
        algo_config=_config(args),
    )
    quantizer.process()
    quantizer.model.save_model_to_file(target, use_external_data_format=True)


__getattr__ = elsewhere(__name__)


if __name__ == "__main__":
    sys.exit(exit_code(main, parser().prog))
