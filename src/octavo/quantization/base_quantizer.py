"""What the quantizers share: their arguments, questions about the model, and the way through the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from octavo.core import affine
from octavo.core.lazy import uncollected
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model.files import io
from octavo.ops import CLAMPS
from octavo.quantization import _work, translate
from octavo.quantization._calibrater import value_infos
from octavo.quantization._errors import OptionError, RangeError, as_stock
from octavo.quantization._names import elsewhere
from octavo.quantization._numbers import bias_tensors, qtype_of, weight_tensors
from octavo.quantization._overrides import Names
from octavo.quantization._tensors_data import TensorData, TensorsData, as_range
from octavo.quantization._types import CalibrationMethod, QuantType
from octavo.quantization._values import QuantizationParams
from octavo.quantization.onnx_model import ONNXModel
from octavo.quantization.tensor_quant_overrides import TensorQuantOverridesHelper

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


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
        self.value_infos = value_infos(copy)
        self.opset_version = next((o.version for o in copy.opset_import if o.domain in ("", "ai.onnx")), 0)
        self.parent = None
        self._refused: list[str] = []
        option = self.extra_options.get
        self.enable_subgraph_quantization = bool(option("EnableSubgraph", False))
        self.force_quantize_no_input_check = bool(option("ForceQuantizeNoInputCheck", False))
        self.is_activation_symmetric = bool(option("ActivationSymmetric", False))
        self.is_activation_restricted_asymmetric = bool(option("ActivationRestrictedAsymmetric", False))
        self.min_real_range = option("MinimumRealRange")
        self.tensor_quant_overrides = TensorQuantOverridesHelper(dict(option("TensorQuantOverrides", {})))
        self._check_overrides()
        self._take_options(self.extra_options)
        translate.warn_of_unknown(self.extra_options, stacklevel=3)
        translate.with_options(self._settings_of({}), self.extra_options)  # a wrong value shows here

    def _take_options(self, options: Mapping[str, Any]) -> None:
        """The attributes that one kind of quantizer has beside those of all."""

    def _check_overrides(self) -> None:
        made = {name for node in self.model.nodes() for name in node.output}
        made |= {value.name for value in self.model.graph().input}
        valid, why = self.tensor_quant_overrides.is_valid(
            self.initializers, made - set(self.initializers), self._type(self.activation_qType)
        )
        if not valid:
            raise OptionError(why)

    def _type(self, element_type: int) -> QuantType:
        return QuantType.of(element_type)

    # ---- questions

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """Whether weights of a type are symmetric: as requested, else by the type."""
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
            raise ValueError(f"{weight_name!r} is not an initializer.")
        symmetric = self.is_weight_symmetric(weight_qType)
        weight = self.initializers[weight_name]
        made = weight_tensors(
            weight, weight_qType, symmetric, reduce_range, self.min_real_range, channel_axis
        )
        return self._add(made, keep_float_weight)

    def _params_of(self, tensor_data: TensorData, own: Mapping[str, Any]) -> QuantizationParams:
        """Scale and zero point of an activation of this range, under settings of its own."""
        return activation_params(
            tensor_data,
            own,
            self._type(self.activation_qType),
            symmetric=self.is_activation_symmetric,
            min_range=self.min_real_range,
            restricted=self.is_activation_restricted_asymmetric,
        )

    def _params_of_tensor(self, tensor_name: str) -> QuantizationParams:
        """Scale and zero point of an activation, from its range."""
        own = self.tensor_quant_overrides.get_per_tensor_overrides(tensor_name, default_val={}) or {}
        found = self._ranges()
        if tensor_name not in found and "scale" not in own:
            raise RangeError(f"There is no range for tensor {tensor_name!r}; give one in tensors_range.")
        return self._params_of(found[tensor_name] if tensor_name in found else TensorData(), own)

    def _scale_of(self, tensor_name: str, axis: int | None = None) -> Any:
        """Return the scale of a tensor: the one it has in the model, else the one it will have."""
        stored = self.model.get_initializer(f"{tensor_name}_scale")
        if stored is not None:
            return onnx.numpy_helper.to_array(stored)
        weight = self.initializers.get(tensor_name)
        if weight is None:
            return self._params_of_tensor(tensor_name)["scale"]
        symmetric = self.is_weight_symmetric(self.weight_qType)
        made = weight_tensors(
            weight, self.weight_qType, symmetric, self.reduce_range, self.min_real_range, axis
        )
        return onnx.numpy_helper.to_array(made[2])

    def _add(self, made: Sequence[onnx.TensorProto], keep_float: bool) -> tuple[str, str, str]:
        self.model.initializer_extend(made[1:] if keep_float else made)
        integers, zero, scale = (tensor.name for tensor in made)
        return integers, zero, scale

    # ---- the way through the core

    def adjust_tensor_ranges(self) -> None:
        """Give what only a Relu or Clip reads the range of its result, and Softmax results 0 … 1.

        The plan knows this by itself; it is for those who read ``tensors_range``.
        """
        if self.tensors_range is not None:
            self.tensors_range = clamped_ranges(self.model, self._ranges(), self.should_quantize_node)

    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model; ``model`` holds it too."""
        if type(self).should_quantize_node is not BaseQuantizer.should_quantize_node:
            self._refused = [n.name for n in self.model.nodes() if not self.should_quantize_node(n)]
        with as_stock(), uncollected():
            loaded = _work.opened(self.model.model, self._request(self.extra_options))
            settings = self._settings_of(self.extra_options, Names(loaded))
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
            self._style(),
            self._type(self.activation_qType),
            self._type(self.weight_qType),
            self.per_channel,
            self.reduce_range,
            tuple(self.op_types_to_quantize),
            tuple(self.nodes_to_quantize),
            (*self.nodes_to_exclude, *filter(None, self._refused)),
            options,
        )

    def _settings_of(
        self, options: Mapping[str, Any], names: Names = translate.NO_NAMES
    ) -> translate.Settings:
        """Return what the arguments request."""
        return translate.settings(self._request(options), names)

    def _style(self) -> Style:
        """Return the format that the quantizer writes."""
        return Style.QDQ


# ---- Ranges that are given: what follows from them for single tensors


def activation_params(
    tensor_data: TensorData,
    own: Mapping[str, Any],
    default: QuantType,
    *,
    symmetric: bool,
    min_range: float | None,
    restricted: bool,
) -> QuantizationParams:
    """Scale and zero point of an activation; ``own`` are the overrides of this tensor."""
    qtype = own.get("quant_type", default).qtype
    if "scale" in own:
        return QuantizationParams(zero_point=own["zero_point"], scale=own["scale"], quant_type=qtype.onnx)
    scheme = Scheme(
        qtype,
        symmetric=own.get("symmetric", symmetric),
        reduce_range=own.get("reduce_range", False),
        min_range=min_range,
        restricted=restricted,
    )
    found = as_range(tensor_data)
    if qtype.is_float:
        params = affine.from_std(found.std if found.std is not None else 0.0, scheme)
    else:
        params = affine.from_range(own.get("rmin", found.low), own.get("rmax", found.high), scheme)
    return QuantizationParams(zero_point=params.zero_point, scale=params.scale, quant_type=qtype.onnx)


def clamped_ranges(
    model: ONNXModel, ranges: TensorsData, selected: Callable[[onnx.NodeProto], bool]
) -> TensorsData:
    """The ranges with what clamps and Softmax, where they are selected, know better than measuring does."""
    found: dict[str, Any] = dict(ranges.items())
    readers = model.input_name_to_nodes()
    for node in model.nodes():
        made = node.output[0] if node.output else ""
        if made not in found or not selected(node):
            continue
        if node.op_type == "Softmax":
            found[made] = TensorData(lowest=0.0, highest=1.0)
        elif node.op_type in CLAMPS and len(readers.get(node.input[0], ())) == 1 and node.input[0] in found:
            found[node.input[0]] = found[made]
    return TensorsData(ranges.calibration_method, found)


__all__ = ["BaseQuantizer", "QuantizationParams"]

__getattr__ = elsewhere(__name__)
