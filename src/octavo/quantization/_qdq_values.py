"""Records of the QDQ quantizer: what is requested for a tensor, and what was done."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx

from octavo.quantization._values import QuantizationParams, QuantizedValue


class QDQQuantTensorType(Enum):
    """What a tensor is to the quantizer."""

    ACTIVATION = 0
    WEIGHT = 1
    BIAS = 2


@dataclass
class QDQQuantParamProvider:
    """Whose parameters a tensor takes, and which node says so."""

    input_name: str
    node_name: str


class QDQTensorQuantInfo:
    """How a tensor is asked to be quantized."""

    def __init__(
        self,
        tensor_type: QDQQuantTensorType = QDQQuantTensorType.ACTIVATION,
        quant_para_provider: QDQQuantParamProvider | None = None,
        axis: int | None = None,
        data_type: int | None = None,
    ) -> None:
        self.tensor_type = tensor_type
        self.quant_para_provider = quant_para_provider
        self.axis = axis
        self.is_shared = quant_para_provider is not None
        self.data_type = data_type


@dataclass
class QDQBiasQuantInfo:
    """Where an int32 bias gets its scale from."""

    node_name: str
    input_name: str
    weight_name: str
    beta: float


@dataclass
class QDQTensorQuantParams:
    """Parameters of a tensor, and those of its conversion for some readers."""

    original: QuantizationParams
    converted: QuantizationParams | None
    converted_recv_nodes: set[str] | None

    def get_for_consumer(self, consumer_node_name: str) -> QuantizationParams:
        """Return the parameters that a node reads by."""
        found: QuantizationParams = _seen(
            self.original, self.converted, self.converted_recv_nodes, consumer_node_name
        )
        return found


@dataclass
class QDQScaleZpInitializers:
    """The initializers of a scale and a zero point."""

    scale: onnx.TensorProto
    zero_point: onnx.TensorProto


@dataclass
class QDQTensorScaleZpInitializers:
    """The initializers of a tensor, and of its conversion."""

    original: QDQScaleZpInitializers
    converted: QDQScaleZpInitializers | None
    converted_recv_nodes: set[str] | None


@dataclass
class QDQTensorQuantizedValue:
    """The names of a quantized tensor, and of its conversion."""

    original: QuantizedValue
    converted: QuantizedValue | None
    converted_recv_nodes: set[str] | None

    def get_for_consumer(self, consumer_node_name: str) -> QuantizedValue:
        """Return the names that a node reads."""
        found: QuantizedValue = _seen(
            self.original, self.converted, self.converted_recv_nodes, consumer_node_name
        )
        return found


def _seen(original: Any, converted: Any, receivers: set[str] | None, node: str) -> Any:
    """Return what a node sees: the conversion if it is meant for it, or for all."""
    if converted is None:
        return original
    return converted if receivers is None or node in receivers else original
