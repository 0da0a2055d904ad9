"""Two modes that have no recipe: integer operators with fixed inputs, QLinear operators with free ones.

Conv and MatMul are quantized, by parameters that follow from the ranges that are given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from octavo.core.qparams import QParams
from octavo.core.recipe import Style
from octavo.pipeline import given
from octavo.planning.policies.given import Given
from octavo.quantization import translate
from octavo.quantization._errors import as_stock
from octavo.quantization._numbers import qtype_of
from octavo.quantization._values import QuantizationParams
from octavo.quantization.onnx_model import ONNXModel

if TYPE_CHECKING:
    from octavo.quantization.onnx_quantizer import ONNXQuantizer


def quantized(quantizer: ONNXQuantizer) -> ONNXModel:
    """Return the quantized model: IntegerOps by ranges, or QLinearOps with inputs of any range."""
    known = {
        name: _params(found) for name, found in (quantizer.calculate_quantization_params() or {}).items()
    }
    integers = quantizer.static  # static and mixed: the mode is IntegerOps
    weights = quantizer._settings_of(quantizer.extra_options, translate.Names()).recipe.weights
    given_params = Given(
        Style.INTEGER if integers else Style.QOPERATOR,
        weights,
        inputs=known,
        outputs={} if integers else known,
        dynamic=not quantizer.static,
    )
    unknown = () if integers else tuple(n.name for n in quantizer.model.nodes() if n.output[0] not in known)
    with as_stock():
        made = given.quantize(
            quantizer.model.model,
            given_params,
            wanted=quantizer.nodes_to_quantize or None,
            excluded=(*quantizer.nodes_to_exclude, *unknown),
            op_types=quantizer.op_types_to_quantize or None,
        )
    return ONNXModel(made)


def _params(found: QuantizationParams) -> QParams:
    kind = qtype_of(found["quant_type"])
    scale, zero = np.asarray(found["scale"], np.float32), np.asarray(found["zero_point"], kind.dtype)
    return QParams(scale.reshape(()), zero.reshape(()), kind)
