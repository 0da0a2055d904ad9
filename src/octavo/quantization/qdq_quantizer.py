"""``QDQQuantizer``: QuantizeLinear and DequantizeLinear around operators, with ranges that are given.

Requests for single tensors are recorded, and carried out by :meth:`QDQQuantizer.quantize_model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.recipe import Override
from octavo.quantization import translate
from octavo.quantization._names import elsewhere
from octavo.quantization._numbers import normalize_axis, qtype_of
from octavo.quantization._overrides import Names
from octavo.quantization._tensors_data import TensorData
from octavo.quantization._values import QuantizedValue
from octavo.quantization.base_quantizer import BaseQuantizer, QuantizationParams

# ---- Records: what is requested for a tensor, and what was done


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


class QDQQuantizer(BaseQuantizer):
    """Writes a model with QuantizeLinear and DequantizeLinear."""

    def _take_options(self, options: Mapping[str, Any]) -> None:
        option = options.get
        self.tensors_to_quantize: dict[str, QDQTensorQuantInfo] = {}
        self.bias_to_quantize: dict[str, QDQBiasQuantInfo] = {}
        self._biases: dict[tuple[str, str], QDQBiasQuantInfo] = {}
        self.nodes_to_remove: list[onnx.NodeProto] = []
        self.op_types_to_exclude_output_quantization = list(option("OpTypesToExcludeOutputQuantization", []))
        self.add_qdq_pair_to_weight = bool(option("AddQDQPairToWeight", False))
        self.quantize_bias = bool(option("QuantizeBias", True))
        self.dedicated_qdq_pair = bool(option("DedicatedQDQPair", False))
        self.qdq_op_type_per_channel_support_to_axis = dict(option("QDQOpTypePerChannelSupportToAxis", {}))
        self.qdq_op_domain = translate.MS if option("UseQDQContribOps", False) else None
        self.qdq_keep_removable_activations = bool(option("QDQKeepRemovableActivations", False))
        self.qdq_disable_weight_adjust_for_int32_bias = bool(
            option("QDQDisableWeightAdjustForInt32Bias", False)
        )
        self.block_size = int(option("BlockSize", 0))

    def _settings_of(
        self, options: Mapping[str, Any], names: Names = translate.NO_NAMES
    ) -> translate.Settings:
        settings = super()._settings_of(options, names)
        asked = self.tensors_to_quantize
        weights = tuple(
            self._as_weight(name, info)
            for name, info in asked.items()
            if info.tensor_type is QDQQuantTensorType.WEIGHT
        )
        given = {name: info.quant_para_provider for name, info in asked.items()}
        return settings.but(overrides=(*weights, *settings.recipe.overrides)).listing(
            tensors=tuple(name for name, source in given.items() if source is None),
            shared=tuple((name, source.input_name) for name, source in given.items() if source is not None),
            biases=tuple(
                (node, bias, info.input_name, info.weight_name) for (node, bias), info in self._biases.items()
            ),
        )

    def _as_weight(self, name: str, info: QDQTensorQuantInfo) -> Override:
        """Return the override that gives a stored tensor the scheme of weights."""
        return Override(
            name,
            qtype=qtype_of(self.weight_qType),
            symmetric=self.is_weight_symmetric(self.weight_qType),
            reduce_range=self.reduce_range,
            granularity=PerTensor() if info.axis is None else PerChannel(info.axis),
        )

    def quantize_activation_tensor(self, tensor_name: str) -> None:
        """Quantize a tensor though no operator asks for it."""
        self.tensors_to_quantize.setdefault(tensor_name, QDQTensorQuantInfo())

    def quantize_output_same_as_input(self, output_name: str, input_name: str, node_name: str) -> None:
        """Quantize a node's output with the parameters of its input."""
        provider = QDQQuantParamProvider(input_name, node_name)
        info = QDQTensorQuantInfo(quant_para_provider=provider)
        self.tensors_to_quantize.setdefault(output_name, info)

    def quantize_weight_tensor(self, tensor_name: str) -> None:
        """Quantize a stored tensor as a weight with one scale, though no operator asks for it."""
        self.quantize_weight_tensor_per_channel(tensor_name, None)

    def quantize_weight_tensor_per_channel(self, tensor_name: str, axis: int | None) -> None:
        """Quantize a stored tensor as a weight with a scale for each index along an axis."""
        if not self.is_valid_quantize_weight(tensor_name):
            raise ValueError(f"{tensor_name!r} is not a float initializer; quantize it as an activation.")
        info = QDQTensorQuantInfo(QDQQuantTensorType.WEIGHT, axis=axis)
        self.tensors_to_quantize.setdefault(tensor_name, info)

    def quantize_bias_tensor(
        self, node_name: str, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0
    ) -> None:
        """Store a node's bias as int32, with the product of the scales of its input and its weight.

        A bias that has overrides is quantized as a weight by these. ``beta`` is noted; what the bias is
        multiplied with stays an attribute of the node.
        """
        if not self.is_valid_quantize_weight(bias_name):
            return
        if bias_name in self.tensor_quant_overrides:
            self.quantize_weight_tensor(bias_name)
            return
        info = QDQBiasQuantInfo(node_name, input_name, weight_name, beta)
        self.bias_to_quantize.setdefault(bias_name, info)
        self._biases.setdefault((node_name, bias_name), info)

    def quantize_bias_static(self, bias_name: str, bias_info: QDQBiasQuantInfo) -> str:
        """Add a bias as int32 to the model; the name of the integers."""
        weight = self.initializers.get(bias_info.weight_name)
        asked = self.tensors_to_quantize.get(bias_info.weight_name)
        axis = asked.axis if asked is not None else None
        if asked is None and weight is not None:
            axis = self.is_tensor_per_channel(bias_info.weight_name, 0)[1]
        scales = self._scale_of(bias_info.input_name), self._scale_of(bias_info.weight_name, axis)
        return self.quantize_bias_static_impl(bias_name, *scales, bias_info.beta)[0]

    # ---- nodes that go

    def remove_node(self, node: onnx.NodeProto) -> None:
        """Note a node that is to be left out."""
        self.nodes_to_remove.append(node)

    def remove_nodes(self) -> None:
        """Take the noted nodes out of the model."""
        self.model.remove_nodes(self.nodes_to_remove)
        self.nodes_to_remove = []

    def try_replacing_upstream_output(self, upstream_output_name: str, output_name: str) -> bool:
        """Let the node before make a node's output, so that this node can go; whether that could be done."""
        readers = self.model.input_name_to_nodes().get(upstream_output_name, ())
        outside = self.model.is_graph_output(upstream_output_name) or self.model.is_graph_input(
            upstream_output_name
        )
        if outside or len(readers) != 1 or output_name not in self._ranges():
            return False
        self.model.replace_output_of_all_nodes(upstream_output_name, output_name)
        self.tensors_to_quantize.pop(upstream_output_name, None)
        return True

    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model, with all that was noted done; ``model`` holds it too."""
        self.remove_nodes()
        return super().quantize_model()

    # ---- questions

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Whether a tensor was asked to be quantized."""
        return tensor_name in self.tensors_to_quantize or tensor_name in self.bias_to_quantize

    def is_tensor_per_channel(
        self, tensor_name: str, default_axis: int, op_type: str | None = None
    ) -> tuple[bool, int | None]:
        """Whether a weight has a scale for each channel, and along which axis."""
        weight = self.initializers.get(tensor_name)
        if weight is None:
            return False, None
        if self.tensor_quant_overrides.has_per_tensor_overrides(tensor_name):
            return False, None
        rank = len(weight.dims)
        found = self.tensor_quant_overrides.get_per_channel_overrides(tensor_name)
        if found is not None:
            return True, normalize_axis(int(found[0]["axis"]), rank)[1]
        if not self.per_channel:
            return False, None
        axis = (
            self.qdq_op_type_per_channel_support_to_axis.get(op_type, default_axis)
            if op_type
            else default_axis
        )
        valid, axis = normalize_axis(axis, rank)
        return (True, axis) if valid else (False, None)

    def calc_quant_params(
        self, tensor_data: TensorData, quant_overrides: Mapping[str, Any]
    ) -> QuantizationParams:
        """Scale and zero point of an activation of this range, under settings of its own."""
        return self._params_of(tensor_data, quant_overrides)

    def calc_graph_quant_params(self) -> dict[str, QDQTensorQuantParams]:
        """Parameters of every tensor that has a range."""
        found: dict[str, QDQTensorQuantParams] = {}
        for name, data in self._ranges().items():
            own = self.tensor_quant_overrides.get_per_tensor_overrides(name, default_val={}) or {}
            convert = own.get("convert")
            found[name] = QDQTensorQuantParams(
                self.calc_quant_params(data, own),
                self.calc_quant_params(data, convert) if convert else None,
                set(convert["recv_nodes"]) if convert and "recv_nodes" in convert else None,
            )
        return found


__all__ = [
    "QDQBiasQuantInfo",
    "QDQQuantParamProvider",
    "QDQQuantTensorType",
    "QDQQuantizer",
    "QDQScaleZpInitializers",
    "QDQTensorQuantInfo",
    "QDQTensorQuantParams",
    "QDQTensorQuantizedValue",
    "QDQTensorScaleZpInitializers",
]

__getattr__ = elsewhere(__name__)
