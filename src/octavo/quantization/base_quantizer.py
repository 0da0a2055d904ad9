"""What the quantizers share: their arguments, questions about the model, and the way through the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from octavo.model import io
from octavo.quantization import _work, translate
from octavo.quantization._errors import OptionError, as_stock
from octavo.quantization._impl import bias_tensors, channel_tensors, weight_tensors
from octavo.quantization._numbers import qtype_of
from octavo.quantization._tensors_data import TensorData, TensorsData
from octavo.quantization._types import CalibrationMethod, QuantType
from octavo.quantization.onnx_model import ONNXModel
from octavo.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


class QuantizationParams:
    """Scale, zero point and type of a tensor, by name."""

    def __init__(self, **data: Any) -> None:
        for key, value in data.items():
            if not isinstance(key, str):
                raise TypeError(f"Parameters are known by names, not by {type(key).__name__}.")
            if key == "axis" and not isinstance(value, int | type(None)):
                raise TypeError("axis is a number.")
        self.data = data

    def get(self, key: str, default_value: Any = None) -> Any:
        """The value of a name."""
        return self.data.get(key, default_value)

    def __iter__(self) -> Any:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __len__(self) -> int:
        return len(self.data)


class BaseQuantizer:
    """The arguments of a quantizer, as stock takes them; the caller's model stays as it is."""

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: TensorsData | Mapping[str, Any] | None,
        nodes_to_quantize: Sequence[str] | None,
        nodes_to_exclude: Sequence[str] | None,
        op_types_to_quantize: Sequence[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        self.model = ONNXModel(copy)
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_qType = qtype_of(weight_qType).onnx
        self.activation_qType = qtype_of(activation_qType).onnx
        self.tensors_range = tensors_range
        self.nodes_to_quantize = list(nodes_to_quantize or ())
        self.nodes_to_exclude = list(nodes_to_exclude or ())
        self.op_types_to_quantize = list(op_types_to_quantize or ())
        self.extra_options = dict(extra_options or {})
        self.initializers = {tensor.name: tensor for tensor in copy.graph.initializer}
        self.opset_version = next((o.version for o in copy.opset_import if o.domain in ("", "ai.onnx")), 0)
        self.parent = None
        option = self.extra_options.get
        self.enable_subgraph_quantization = bool(option("EnableSubgraph", False))
        self.force_quantize_no_input_check = bool(option("ForceQuantizeNoInputCheck", False))
        self.is_activation_symmetric = bool(option("ActivationSymmetric", False))
        self.is_activation_restricted_asymmetric = bool(option("ActivationRestrictedAsymmetric", False))
        self.min_real_range = option("MinimumRealRange")
        self.tensor_quant_overrides = TensorQuantOverridesHelper(dict(option("TensorQuantOverrides", {})))
        self._check_overrides()
        translate.with_options(self._settings_of({}), self.extra_options)  # an unknown key shows here

    def _check_overrides(self) -> None:
        made = {name for node in self.model.nodes() for name in node.output}
        made |= {value.name for value in self.model.graph().input}
        valid, why = self.tensor_quant_overrides.is_valid(
            self.initializers, made - set(self.initializers), self._type(self.activation_qType)
        )
        if not valid:
            raise OptionError(why)

    def _type(self, element_type: int) -> QuantType:
        return QuantType.of(qtype_of(element_type))

    # ---- questions

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """Whether weights of a type are symmetric: as asked for, else by the type."""
        asked = self.extra_options.get("WeightSymmetric")
        return qtype_of(weight_quant_type).symmetric_by_default if asked is None else bool(asked)

    def is_input_a_initializer(self, input_name: str) -> bool:
        """Whether a tensor is stored in the model."""
        return input_name in self.initializers

    def is_per_channel(self) -> bool:
        """Whether weights have a scale for each channel."""
        return self.per_channel

    def is_valid_quantize_weight(self, weight_name: str) -> bool:
        """Whether a tensor is a stored float."""
        found = self.initializers.get(weight_name)
        return found is not None and found.data_type in _FLOATS

    def should_quantize_node(self, node: onnx.NodeProto) -> bool:
        """Whether the arguments let a node in."""
        if self.nodes_to_quantize and node.name not in self.nodes_to_quantize:
            return False
        return node.op_type in self.op_types_to_quantize and node.name not in self.nodes_to_exclude

    # ---- single tensors

    def quantize_bias_static_impl(
        self, bias_name: str, input_scale: Any, weight_scale: Any, beta: float = 1.0
    ) -> tuple[str, str, str, Any, str, int]:
        """Add a bias as int32; names of integers, scale, zero point; scale, reading node, type."""
        made, scale = bias_tensors(self.initializers[bias_name], input_scale, weight_scale, beta)
        self.model.initializer_extend(made)
        names = [tensor.name for tensor in made]
        return (names[0], names[1], names[2], scale, "DequantizeLinear", self.weight_qType)

    def quantize_initializer_impl(
        self,
        weight: onnx.TensorProto,
        qType: Any,  # noqa: N803
        reduce_range: bool = False,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Add a weight as integers with one scale to the model; names of integers, zero point and scale."""
        symmetric = (
            self.is_weight_symmetric(qType) if qType == self.weight_qType else self.is_activation_symmetric
        )
        made = weight_tensors(weight, qType, symmetric, reduce_range, self.min_real_range)
        return self._add(made, keep_float_weight)

    def quantize_weight_per_channel_impl(
        self,
        weight_name: str,
        weight_qType: Any,  # noqa: N803
        channel_axis: int,
        reduce_range: bool = True,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Add a weight as integers with a scale for each channel; names of integers, zero point and scale."""
        if weight_name not in self.initializers:
            raise ValueError(f"{weight_name!r} is no initializer.")
        symmetric = self.is_weight_symmetric(weight_qType)
        made = channel_tensors(
            self.initializers[weight_name],
            weight_qType,
            channel_axis,
            symmetric,
            reduce_range,
            self.min_real_range,
        )
        return self._add(made, keep_float_weight)

    def _add(self, made: Sequence[onnx.TensorProto], keep_float: bool) -> tuple[str, str, str]:
        self.model.initializer_extend(made[1:] if keep_float else made)
        integers, zero, scale = (tensor.name for tensor in made)
        return integers, zero, scale

    # ---- the way through the core

    def adjust_tensor_ranges(self) -> None:
        """The plan sees to what clamps and Softmax know of ranges; nothing is left to adjust."""

    def quantize_model(self) -> onnx.ModelProto:
        """The quantized model; ``model`` holds it too."""
        with as_stock(), _work.uncollected():
            loaded = _work.opened(self.model.model, self._request(self.extra_options))
            settings = self._settings_of(self.extra_options, _work.names_of(loaded))
            job = _work.fitted(_work.planned(loaded, settings), self._ranges())
            result = io.to_proto(_work.written(job, self._known(job)))
        self.model = ONNXModel(result)
        return result

    def _known(self, job: _work.Job) -> Any:
        return _work.ranged(job, self._ranges())

    def _ranges(self) -> TensorsData:
        given = self.tensors_range
        if given is None:
            return TensorsData(CalibrationMethod.MinMax, {})
        if isinstance(given, TensorsData):
            return given
        for name, value in given.items():
            if not isinstance(value, TensorData | tuple | list):
                raise TypeError(f"The range of {name!r} is a TensorData or (lowest, highest), not {value!r}.")
        return TensorsData(CalibrationMethod.MinMax, dict(given))

    def _request(self, options: Mapping[str, Any]) -> translate.Request:
        return translate.Request(
            self._type(self.activation_qType),
            self._type(self.weight_qType),
            self.per_channel,
            self.reduce_range,
            tuple(self.op_types_to_quantize),
            tuple(self.nodes_to_quantize),
            tuple(self.nodes_to_exclude),
            options,
        )

    def _settings_of(
        self, options: Mapping[str, Any], names: translate.Names | None = None
    ) -> translate.Settings:
        """What the arguments ask for; each quantizer says in which format."""
        from octavo.quantization._types import QuantFormat

        return translate.static(
            self._request(options), QuantFormat.QDQ, translate.Calibration(), names or translate.Names()
        )


__all__ = ["BaseQuantizer", "QuantizationParams"]
