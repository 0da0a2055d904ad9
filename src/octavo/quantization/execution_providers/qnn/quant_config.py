"""``get_qnn_qdq_config``: the settings under which QNN runs a QDQ model well."""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo.quantization._calibration import proto_of
from octavo.quantization._configs import StaticQuantConfig
from octavo.quantization._models import get_opset_version
from octavo.quantization._names import elsewhere
from octavo.quantization._types import (
    EIGHT_BITS,
    FOUR_BITS,
    SIXTEEN_BITS,
    CalibrationMethod,
    QuantFormat,
    QuantType,
)
from octavo.quantization._values import MODEL_SIZE_THRESHOLD
from octavo.quantization.execution_providers.qnn.mixed_precision_overrides_utils import (
    MixedPrecisionTensorQuantOverridesFixer,
)
from octavo.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

_LOG = logging.getLogger("octavo.quantization")
Q16_TYPES, Q8_TYPES, Q4_TYPES = set(SIXTEEN_BITS), set(EIGHT_BITS), set(FOUR_BITS)
OP_TYPES_TO_EXCLUDE = {"Cast"}

_NATIVE_OPSET = 21  # the first opset whose own QuantizeLinear takes 16 and 4 bits
_LEAST_RANGE = 1e-4  # the least width of a range on QNN

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
    """Return a configuration that quantizes every operator but Cast; the overrides given stay as they are."""
    model, external = proto_of(model_input)
    activation, weight = QuantType.of(activation_type), QuantType.of(weight_type)
    if weight_symmetric is None:
        weight_symmetric = weight in (QuantType.QInt8, QuantType.QInt16)
    overrides = TensorQuantOverridesHelper(copy.deepcopy(init_overrides) if init_overrides else {})
    if not overrides.empty() and add_qtype_converts:
        create = MixedPrecisionTensorQuantOverridesFixer.create_from_model
        create(overrides, model, activation).apply(activation, activation_symmetric)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    demands = QnnCompatibilityOverrides(
        activation, weight, activation_symmetric, weight_symmetric, per_channel, overrides, stored
    )
    present: set[str] = set()
    for node in model.graph.node:
        requested = not op_types_to_quantize or node.op_type in op_types_to_quantize
        if requested and node.name not in (nodes_to_exclude or ()):
            present.add(node.op_type)
            demands.process_node(node)
    options = {
        "MinimumRealRange": _LEAST_RANGE,
        "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(),
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "CalibStridedMinMax": stride,
    }
    types = {activation, weight} | overrides.get_quant_types()
    if get_opset_version(model) < _NATIVE_OPSET and types & (SIXTEEN_BITS | FOUR_BITS):
        options["UseQDQContribOps"] = True
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation,
        weight_type=weight,
        op_types_to_quantize=op_types_to_quantize or sorted(present - OP_TYPES_TO_EXCLUDE),
        nodes_to_exclude=nodes_to_exclude,
        per_channel=per_channel,
        use_external_data_format=external,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


class QnnCompatibilityOverrides:
    """Adds to overrides what QNN demands of single operators, where they leave it open."""

    def __init__(
        self,
        default_activation_qtype: QuantType,
        default_weight_qtype: QuantType,
        activation_symmetric: bool,
        weight_symmetric: bool,
        per_channel: bool,
        overrides: TensorQuantOverridesHelper,
        initializers: Collection[str],
    ) -> None:
        self.default_activation_qtype = default_activation_qtype
        self.default_weight_qtype = default_weight_qtype
        self.activation_symmetric = activation_symmetric
        self.weight_symmetric = weight_symmetric
        self.per_channel = per_channel
        self.overrides = overrides
        self.initializers = initializers

    def process_node(self, node: onnx.NodeProto) -> None:
        """Write what a node demands into the overrides."""
        if node.op_type == "MatMul" and self.per_channel:
            for name in node.input:  # QNN has no MatMul with a scale for each channel
                if name in self.initializers and name not in self.overrides:
                    self.overrides.update_tensor_overrides(name, self._weight())
        elif node.op_type in ("MatMul", "LayerNormalization") and not self.per_channel:
            self._eight_bit_weight(node)
        elif node.op_type in ("Sigmoid", "Tanh"):
            self._fixed_result(node)

    def _weight(self) -> dict[str, Any]:
        return {"quant_type": self.default_weight_qtype, "symmetric": self.weight_symmetric}

    def _eight_bit_weight(self, node: onnx.NodeProto) -> None:
        """Give the weight beside a 16-bit activation the type of weights, which it has not by default."""
        names = [name for name in node.input[:2] if name]
        weights = [name for name in names if name in self.initializers]
        kinds = {
            name: self.overrides.get_node_input_qtype_info(
                name, node.name, None if name in weights else self.default_activation_qtype
            )
            for name in names
        }
        wide = any(kinds[name].quant_type in SIXTEEN_BITS for name in names if name not in weights)
        if (
            self.default_weight_qtype not in EIGHT_BITS
            or not wide
            or not weights
            or any(kind.axis is not None for kind in kinds.values())
        ):
            return
        wanted, known = self._weight(), kinds[weights[-1]]
        if (known.quant_type, known.symmetric) == (wanted["quant_type"], wanted["symmetric"]):
            return
        if not self.overrides.update_tensor_overrides(weights[-1], wanted, overwrite=False):
            warn_unable_to_override(node, "quant_type/symmetric", weights[-1], "input weight")

    def _fixed_result(self, node: onnx.NodeProto) -> None:
        """Give a 16-bit Sigmoid or Tanh the scale that QNN computes it with."""
        name = node.output[0]
        kind = self.overrides.get_node_output_qtype_info(name, self.default_activation_qtype).quant_type
        if (node.op_type, kind) not in _FIXED or self.overrides.overrides_scale_zp(name):
            return
        parts, zero = _FIXED[node.op_type, kind]
        for key in ("symmetric", "rmin", "rmax", "reduce_range"):
            for entry in self.overrides.get(name) or ():
                entry.pop(key, None)
        fixed = {"scale": np.array(1.0 / parts, np.float32), "zero_point": np.array(zero, kind.qtype.dtype)}
        self.overrides.update_tensor_overrides(name, {"quant_type": kind, **fixed})


def warn_unable_to_override(node: onnx.NodeProto, what_str: str, tensor_name: str, io_kind: str) -> None:
    """Log that an override given by the caller stands against what QNN demands."""
    _LOG.warning(
        "%s of %r, %s of the %s node %r, is given by the overrides and differs from what QNN takes; if the"
        " model does not run there, leave that override out.",
        what_str, tensor_name, io_kind, node.op_type, node.name,
    )  # fmt: skip


__all__ = [
    "MODEL_SIZE_THRESHOLD",
    "OP_TYPES_TO_EXCLUDE",
    "Q4_TYPES",
    "Q8_TYPES",
    "Q16_TYPES",
    "QnnCompatibilityOverrides",
    "get_qnn_qdq_config",
    "warn_unable_to_override",
]

__getattr__ = elsewhere(__name__)
