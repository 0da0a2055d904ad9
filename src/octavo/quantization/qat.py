"""``quantize_qat``: a model trained with fake quantization becomes one that computes with integers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from octavo import api
from octavo.core.recipe import Style
from octavo.quantization._errors import OptionError, QuantizationWarning, as_stock
from octavo.quantization._types import QuantFormat, QuantizationMode, QuantType

_STYLES = {
    QuantFormat.QDQ: Style.QDQ,
    QuantFormat.QOperator: Style.QOPERATOR,
    QuantizationMode.QLinearOps: Style.QOPERATOR,
    QuantizationMode.IntegerOps: Style.INTEGER,
}


def quantize_qat(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QUInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    quant_format: QuantFormat | QuantizationMode = QuantizationMode.IntegerOps,
    calibration_data_reader: Any = None,
) -> None:
    """Write the integer model of a trained one.

    Types, granularity and ranges are those of the training; ``per_channel``, ``reduce_range`` and the two
    types are taken for the sake of old calls and change nothing. ``quant_format`` is ``QuantFormat.QDQ``, the
    fastest on most machines, ``QuantFormat.QOperator``, or ``QuantizationMode.IntegerOps``. The reader is
    asked only for ranges that training left open.
    """
    if quant_format not in _STYLES:
        raise OptionError(
            "quant_format is QuantFormat.QDQ, QuantFormat.QOperator or QuantizationMode.IntegerOps."
        )
    with as_stock():
        result = api.convert_qat(
            model_input,
            calibration_data_reader,
            output=model_output,
            style=_STYLES[quant_format],
            op_types=op_types_to_quantize or None,
            include=tuple(nodes_to_quantize or ()),
            exclude=tuple(nodes_to_exclude or ()),
            external_data=use_external_data_format or None,
        )
    if result.plan.style is Style.INTEGER and any(n.op_type == "Conv" for n in result.plan.nodes.values()):
        warnings.warn(
            "ConvInteger is slower than float on most machines; choose quant_format=QuantFormat.QDQ.",
            QuantizationWarning,
            stacklevel=2,
        )


__all__ = ["quantize_qat"]
