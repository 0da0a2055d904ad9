"""The settings of stock's weight-only algorithms."""

from __future__ import annotations

import importlib.util
from typing import Any, ClassVar, NoReturn

from onnx import ModelProto

from octavo.errors import RecipeError
from octavo.quantization._readers import CalibrationDataReader
from octavo.quantization._types import QuantFormat

_Axes = tuple[tuple[str, int], ...] | None
_Ops = tuple[str, ...] | None


class WeightOnlyQuantConfig:
    """What every algorithm takes: a format, op types, the axes that blocks run along, settings by node."""

    def __init__(
        self,
        algorithm: str,
        quant_format: QuantFormat,
        op_types_to_quantize: _Ops = None,
        quant_axes: _Axes = None,
        customized_weight_config: dict[str, Any] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.calibration_data_reader: CalibrationDataReader | None = None
        self.quant_format = quant_format
        self.op_types_to_quantize = set(op_types_to_quantize) if op_types_to_quantize else {"MatMul"}
        self.quant_axes = dict(quant_axes) if quant_axes else {"MatMul": 0, "Gather": 1}
        self.customized_weight_config = customized_weight_config


class _RoundedConfig(WeightOnlyQuantConfig):
    """Every weight by itself; ``ratios`` shrink the ranges of nodes."""

    kind: ClassVar[str]

    def __init__(
        self,
        ratios: dict[str, float] | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: _Ops = None,
        customized_weight_config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(self.kind, quant_format, op_types_to_quantize, None, customized_weight_config)
        self.ratios = ratios if ratios is not None else {}


class RTNWeightOnlyQuantConfig(_RoundedConfig):
    """Round to nearest."""

    kind = "RTN"


class KQuantWeightOnlyQuantConfig(_RoundedConfig):
    """Scales and zero points by weighted least squares."""

    kind = "k_quant"


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Error feedback; ``block_size`` is the number of columns between two updates of all others."""

    def __init__(
        self,
        calibration_data_reader: CalibrationDataReader | None = None,
        percdamp: float = 0.01,
        block_size: int = 128,
        actorder: bool = False,
        mse: bool = False,
        perchannel: bool = True,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: _Ops = None,
    ) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader
        self.percdamp = percdamp
        self.block_size = block_size
        self.actorder = actorder
        self.mse = mse
        self.perchannel = perchannel


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Zero points refined by half-quadratic steps."""

    def __init__(
        self,
        block_size: int = 128,
        bits: int = 4,
        axis: int = 1,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: _Ops = None,
        quant_axes: _Axes = None,
    ) -> None:
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.bits = bits
        self.axis = axis


class ObservedWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Algorithms that look at inputs: ``importance``, ``awq``, which scales channels first, and others.

    Others are written as in a recipe, with an option: ``gptq:sequential=yes``.
    """

    def __init__(
        self,
        algorithm: str,
        calibration_data_reader: CalibrationDataReader,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: _Ops = None,
    ) -> None:
        super().__init__(algorithm, quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Round to nearest as ONNX Runtime does it."""

    def __init__(
        self,
        block_size: int = 128,
        is_symmetric: bool = False,
        accuracy_level: int | None = None,
        quant_format: QuantFormat = QuantFormat.QOperator,
        op_types_to_quantize: _Ops = None,
        quant_axes: _Axes = None,
        bits: int = 4,
        channel_wised_quantize: bool = False,
    ) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.bits = bits
        self.accuracy_level = accuracy_level
        self.channel_wised_quantize = channel_wised_quantize


class NVAWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ of another package, which is refused with the reason."""

    def __init__(
        self,
        tokenizer_dir: str,
        dataset_name: str = "cnn",
        cache_dir: str = "./cache",
        calibration_method: str = "awq_lite",
    ) -> None:
        super().__init__("nvidia_awq", QuantFormat.QDQ)
        self.tokenizer_dir = tokenizer_dir
        self.dataset_name = dataset_name
        self.cache_dir = cache_dir
        self.calibration_method = calibration_method

    def make_model_input(
        self,
        config: Any,
        input_ids_arg: Any,
        attention_mask_arg: Any,
        add_past_kv_inputs: bool,
        device: Any,
        use_fp16: bool,
        use_buffer_share: bool,
        add_position_ids: bool,
    ) -> NoReturn:
        """Refused: see :func:`refuse_awq`."""
        refuse_awq()

    def get_calib_inputs(
        self,
        dataset_name: str,
        model_name: str,
        cache_dir: str,
        calib_size: int,
        batch_size: int,
        block_size: int,
        device: Any,
        use_fp16: bool,
        use_buffer_share: bool,
        add_past_kv_inputs: bool,
        max_calib_rows_to_load: int,
        add_position_ids: bool,
    ) -> NoReturn:
        """Refused: see :func:`refuse_awq`."""
        refuse_awq()


class NVAWQWeightOnlyQuantizer:
    """AWQ of another package, which is refused with the reason."""

    def __init__(self, config: NVAWQWeightOnlyQuantConfig) -> None:
        self.config = config

    def quantize_awq(self, model: ModelProto | str) -> NoReturn:
        """Refused: see :func:`refuse_awq`."""
        refuse_awq()


def refuse_awq() -> NoReturn:
    """Say that nvidia_awq is the work of another package, and what to use instead."""
    here = importlib.util.find_spec("modelopt") is not None
    missing = "" if here else ", which is not installed"
    raise RecipeError(
        f"nvidia_awq is an algorithm of the package nvidia-modelopt{missing}, and Octavo does not run it;"
        " call modelopt itself, or choose k_quant, hqq or gptq, which need no other package."
    )
