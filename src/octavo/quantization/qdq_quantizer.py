"""``QDQQuantizer``: QuantizeLinear and DequantizeLinear around operators, with ranges that are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import onnx

from octavo.core import affine
from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.recipe import Override
from octavo.core.scheme import Scheme
from octavo.quantization import translate
from octavo.quantization._numbers import normalize_axis, qtype_of
from octavo.quantization._tensors_data import TensorData, as_range
from octavo.quantization._types import QuantFormat
from octavo.quantization.base_quantizer import BaseQuantizer, QuantizationParams
from octavo.quantization.quant_utils import QuantizedValue


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
        """The parameters that a node reads by."""
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
        """The names that a node reads."""
        found: QuantizedValue = _seen(
            self.original, self.converted, self.converted_recv_nodes, consumer_node_name
        )
        return found


def _seen(original: Any, converted: Any, receivers: set[str] | None, node: str) -> Any:
    """What a node sees: the conversion if it is meant for it, or for all."""
    if converted is None:
        return original
    return converted if receivers is None or node in receivers else original


class QDQQuantizer(BaseQuantizer):
    """Writes a model with QuantizeLinear and DequantizeLinear."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        option = self.extra_options.get
        self.tensors_to_quantize: dict[str, QDQTensorQuantInfo] = {}
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
        self, options: Mapping[str, Any], names: translate.Names | None = None
    ) -> translate.Settings:
        settings = translate.static(
            self._request(options), QuantFormat.QDQ, translate.Calibration(), names or translate.Names()
        )
        asked: dict[str, QDQTensorQuantInfo] = getattr(self, "tensors_to_quantize", {})
        weights = tuple(
            self._as_weight(name, info)
            for name, info in asked.items()
            if info.tensor_type is QDQQuantTensorType.WEIGHT
        )
        settings = settings.but(overrides=(*weights, *settings.recipe.overrides))
        return settings.listing(tensors=tuple(asked))

    def _as_weight(self, name: str, info: QDQTensorQuantInfo) -> Override:
        """The override that gives a stored tensor the scheme of weights."""
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

    def quantize_weight_tensor(self, tensor_name: str) -> None:
        """Quantize a stored tensor as a weight with one scale, though no operator asks for it."""
        self.quantize_weight_tensor_per_channel(tensor_name, None)

    def quantize_weight_tensor_per_channel(self, tensor_name: str, axis: int | None) -> None:
        """Quantize a stored tensor as a weight with a scale for each index along an axis."""
        if not self.is_valid_quantize_weight(tensor_name):
            raise ValueError(f"{tensor_name!r} is no stored float tensor; quantize it as an activation.")
        info = QDQTensorQuantInfo(QDQQuantTensorType.WEIGHT, axis=axis)
        self.tensors_to_quantize.setdefault(tensor_name, info)

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Whether a tensor was asked to be quantized."""
        return tensor_name in self.tensors_to_quantize

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
        kind = quant_overrides.get("quant_type")
        qtype = qtype_of(self.activation_qType) if kind is None else kind.qtype
        if "scale" in quant_overrides:
            return QuantizationParams(
                zero_point=quant_overrides["zero_point"],
                scale=quant_overrides["scale"],
                quant_type=qtype.onnx,
            )
        scheme = Scheme(
            qtype,
            symmetric=quant_overrides.get("symmetric", self.is_activation_symmetric),
            reduce_range=quant_overrides.get("reduce_range", False),
            min_range=self.min_real_range,
            restricted=self.is_activation_restricted_asymmetric,
        )
        found = as_range(tensor_data)
        if qtype.is_float:
            params = affine.from_std(found.std if found.std is not None else 0.0, scheme)
        else:
            low, high = quant_overrides.get("rmin", found.low), quant_overrides.get("rmax", found.high)
            params = affine.from_range(low, high, scheme)
        return QuantizationParams(zero_point=params.zero_point, scale=params.scale, quant_type=qtype.onnx)

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
