"""``get_qnn_qdq_config``: the settings under which QNN runs a QDQ model well."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo.quantization._calibration import proto_of
from octavo.quantization._configs import StaticQuantConfig
from octavo.quantization._types import CalibrationMethod, QuantFormat, QuantType
from octavo.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from octavo.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

_SIXTEEN = (QuantType.QInt16, QuantType.QUInt16)
_FOUR = (QuantType.QInt4, QuantType.QUInt4)
_NEWEST = 21  # the first opset whose own QuantizeLinear takes 16 and 4 bits
_LEAST_RANGE = 1e-4

# What QNN takes for the results of these operators: (denominator of the scale, zero point).
_FIXED = {
    ("Sigmoid", QuantType.QUInt16): (65536, 0),
    ("Sigmoid", QuantType.QInt16): (32768, 0),
    ("Tanh", QuantType.QUInt16): (32768, 32768),
    ("Tanh", QuantType.QInt16): (32768, 0),
}


def get_qnn_qdq_config(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: dict[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: list[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
) -> StaticQuantConfig:
    """A configuration that quantizes every operator but Cast; the overrides given stay as they are."""
    model, external = proto_of(model_input)
    if weight_symmetric is None:
        weight_symmetric = weight_type in (QuantType.QInt8, QuantType.QInt16)
    overrides = TensorQuantOverridesHelper(copy.deepcopy(init_overrides) if init_overrides else {})
    if not overrides.empty() and add_qtype_converts:
        fixer = MixedPrecisionTensorQuantOverridesFixer.create_from_model(overrides, model, activation_type)
        fixer.apply(activation_type, activation_symmetric)
    _by_operator(
        model,
        overrides,
        activation_type,
        {"quant_type": weight_type, "symmetric": weight_symmetric},
        per_channel,
    )
    wanted = set(op_types_to_quantize) if op_types_to_quantize else None
    present = sorted({node.op_type for node in model.graph.node})
    options = {
        "MinimumRealRange": _LEAST_RANGE,
        "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(),
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "CalibStridedMinMax": stride,
    }
    if _opset(model) < _NEWEST and ({activation_type, weight_type} | overrides.get_quant_types()) & {
        *_SIXTEEN,
        *_FOUR,
    }:
        options["UseQDQContribOps"] = True
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation_type,
        weight_type=weight_type,
        op_types_to_quantize=[op for op in present if (op in wanted if wanted is not None else op != "Cast")],
        nodes_to_exclude=list(nodes_to_exclude or ()),
        per_channel=per_channel,
        use_external_data_format=external,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


def _by_operator(
    model: onnx.ModelProto,
    overrides: TensorQuantOverridesHelper,
    activation: QuantType,
    weight: dict[str, Any],
    per_channel: bool,
) -> None:
    """What QNN asks of single operators, where the overrides leave it open."""
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("MatMul", "LayerNormalization"):
            wide = any(
                overrides.get_node_input_qtype_info(name, node.name, activation).quant_type in _SIXTEEN
                for name in node.input
                if name and name not in stored
            )
            matmul = node.op_type == "MatMul"
            if (per_channel if matmul else False) or (wide and (matmul or not per_channel)):
                for name in node.input if matmul else node.input[1:2]:
                    if name in stored and name not in overrides:
                        overrides.update_tensor_overrides(name, dict(weight))
        elif node.op_type in ("Sigmoid", "Tanh"):
            _fixed_result(node, overrides, activation)


def _fixed_result(node: onnx.NodeProto, overrides: TensorQuantOverridesHelper, activation: QuantType) -> None:
    name = node.output[0]
    kind = overrides.get_node_output_qtype_info(name, activation).quant_type
    if (node.op_type, kind) not in _FIXED or overrides.overrides_scale_zp(name):
        return
    parts, zero = _FIXED[node.op_type, kind]
    for key in ("symmetric", "rmin", "rmax", "reduce_range"):
        for entry in overrides.get(name) or ():
            entry.pop(key, None)
    overrides.update_tensor_overrides(
        name,
        {
            "quant_type": kind,
            "scale": np.array(1.0 / parts, np.float32),
            "zero_point": np.array(zero, kind.qtype.dtype),
        },
    )


def _opset(model: onnx.ModelProto) -> int:
    return next((int(entry.version) for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
