"""The first generation of ``quantize``: a ModelProto in, a ModelProto out, parameters given by hand.

======================  ============================================================================
``IntegerOps``          ConvInteger and MatMulInteger, results in float
``QLinearOps``          QLinearConv and QLinearMatMul; results by ``output_quantization_params``
``static=True``         inputs by ``input_quantization_params``: ``{"name": [zero_point, scale]}``
``static=False``        inputs by a scale and zero point that are computed while the model runs
======================  ============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from octavo.core.granularity import Granularity, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.pipeline import given
from octavo.planning.policies.given import Given
from octavo.quantization._errors import OptionError, as_stock
from octavo.quantization._types import QuantizationMode

Numbers = Mapping[str, Sequence[Any]]

_STYLES = {QuantizationMode.IntegerOps: Style.INTEGER, QuantizationMode.QLinearOps: Style.QOPERATOR}


def quantize(
    model: onnx.ModelProto,
    per_channel: bool = False,
    nbits: int = 8,
    quantization_mode: QuantizationMode = QuantizationMode.IntegerOps,
    static: bool = False,
    asymmetric_input_types: bool = False,
    input_quantization_params: Numbers | None = None,
    output_quantization_params: Numbers | None = None,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    quantization_params: Numbers | None = None,
    symmetric_weight: bool = False,
    symmetric_activation: bool = False,
    force_fusions: bool = False,
) -> onnx.ModelProto:
    """Return the quantized model.

    ``quantization_params`` speaks of inputs and outputs at once. ``symmetric_weight`` is another word for
    ``asymmetric_input_types``: both make weights int8. ``force_fusions`` changes nothing: the runtime fuses.
    """
    if not isinstance(model, onnx.ModelProto):
        raise TypeError(
            f"This way of calling quantize takes an onnx.ModelProto, not a {type(model).__name__}; load it"
            " first, or give model_output and quant_config."
        )
    if nbits != 8:
        raise OptionError(f"nbits={nbits} has no integer operators; only nbits=8 has.")
    if quantization_mode not in _STYLES:
        raise OptionError("quantization_mode is QuantizationMode.IntegerOps or QuantizationMode.QLinearOps.")
    if symmetric_activation and not static:
        raise OptionError(
            "Inputs quantized while the model runs are uint8 and asymmetric; leave symmetric_activation out."
        )
    both = quantization_params or {}
    inputs = {**both, **(input_quantization_params or {})}
    outputs = {**both, **(output_quantization_params or {})}
    if static and not inputs:
        raise OptionError(
            "static=True takes input_quantization_params={'input name': [zero_point, scale]}; give them, or"
            " leave static out to have inputs quantized while the model runs."
        )
    style = _STYLES[quantization_mode]
    given_params = Given(
        style,
        _weights(per_channel, asymmetric_input_types or symmetric_weight, style),
        _parameters(inputs, "input_quantization_params") if static else {},
        _parameters(outputs, "output_quantization_params") if style is Style.QOPERATOR else {},
        dynamic=not static,
    )
    with as_stock():
        return given.quantize(
            model,
            given_params,
            wanted=nodes_to_quantize or None,
            excluded=nodes_to_exclude or (),
            op_types=op_types_to_quantize or None,
        )


def _weights(per_channel: bool, signed: bool, style: Style) -> Scheme:
    grain: Granularity = PerChannel() if per_channel else PerTensor()
    alike = per_channel and style is Style.INTEGER  # ConvInteger takes one zero point
    return Scheme(INT8 if signed else UINT8, grain, symmetric=signed or alike)


def _parameters(raw: Numbers, what: str) -> dict[str, QParams]:
    return {name: _pair(name, numbers, what) for name, numbers in raw.items()}


def _pair(name: str, numbers: Sequence[Any], what: str) -> QParams:
    try:
        zero, scale = (np.asarray(number).reshape(()) for number in numbers)
    except (TypeError, ValueError):
        raise OptionError(f"{what}[{name!r}] is a list [zero_point, scale], not {numbers!r}.") from None
    kind = INT8 if zero.dtype == np.int8 or int(zero) < 0 else UINT8
    if not kind.qmin <= int(zero) <= kind.qmax or int(zero) != float(zero):
        raise OptionError(
            f"{what}[{name!r}]: the zero point {zero} is not a {kind}; it comes first, then the scale."
        )
    if not 0.0 < float(scale) < np.inf:
        raise OptionError(
            f"{what}[{name!r}]: the scale {scale} is not a positive number; the scale comes second."
        )
    return QParams(scale.astype(np.float32), zero.astype(kind.dtype), kind)
