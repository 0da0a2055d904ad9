"""4-bit weights under the names of releases 1.16 to 1.21; scripts from that time import these."""

from __future__ import annotations

import runpy
from collections.abc import Sequence

from onnx import ModelProto

from octavo.quantization import matmul_nbits_quantizer
from octavo.quantization._names import elsewhere
from octavo.quantization._types import QuantFormat
from octavo.quantization._weight_only_configs import (
    DefaultWeightOnlyQuantConfig,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
)

__all__ = [
    "DefaultWeightOnlyQuantConfig",
    "GPTQWeightOnlyQuantConfig",
    "HQQWeightOnlyQuantConfig",
    "MatMul4BitsQuantizer",
    "RTNWeightOnlyQuantConfig",
    "WeightOnlyQuantConfig",
]


class MatMul4BitsQuantizer(matmul_nbits_quantizer.MatMulNBitsQuantizer):
    """``MatMulNBitsQuantizer`` with 4 bits, which have no argument here."""

    def __init__(
        self,
        model: ModelProto | str,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        nodes_to_exclude: Sequence[str] | None = None,
        nodes_to_include: list[str] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: tuple[str, ...] | None = None,
        quant_axes: tuple[tuple[str, int], ...] | None = None,
        algo_config: WeightOnlyQuantConfig | None = None,
    ) -> None:
        settings = (block_size, is_symmetric, accuracy_level, nodes_to_exclude, nodes_to_include)
        kinds = (quant_format, op_types_to_quantize, quant_axes)
        super().__init__(model, 4, *settings, *kinds, algo_config=algo_config)


__getattr__ = elsewhere(__name__)

if __name__ == "__main__":
    runpy.run_module(matmul_nbits_quantizer.__name__, run_name="__main__")
