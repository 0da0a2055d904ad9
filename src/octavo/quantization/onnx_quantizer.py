"""``ONNXQuantizer``: integer operators, with ranges that are given or found while the model runs.

:meth:`ONNXQuantizer.quantize_model` does all of it. The methods for single tensors are for those who write an
operator of their own: they add what is stored to the model, and hand over the nodes that compute the rest,
for :meth:`ONNXQuantizer.add_new_nodes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from octavo.core import affine
from octavo.core.qparams import QParams
from octavo.core.recipe import Style
from octavo.model.graph.operators import CONVERSIONS
from octavo.pipeline import given
from octavo.planning.policies.given import Given
from octavo.quantization import _work
from octavo.quantization._errors import InferenceError, UnsupportedError, as_stock
from octavo.quantization._names import elsewhere
from octavo.quantization._numbers import params_tensors, qtype_of
from octavo.quantization._tensors_data import TensorsData
from octavo.quantization._types import QuantizationMode, QuantizedValueType
from octavo.quantization._values import QuantizationParams, QuantizedValue
from octavo.quantization.base_quantizer import BaseQuantizer
from octavo.quantization.onnx_model import ONNXModel

Quantized = tuple[list[str], list[str], list[str], list[onnx.NodeProto]]

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class ONNXQuantizer(BaseQuantizer):
    """Writes QLinear or integer operators, for inputs whose range is known or found while the model runs."""

    def __init__(
        self,
        model: onnx.ModelProto,
        per_channel: bool,
        reduce_range: bool,
        mode: QuantizationMode,
        static: bool,
        weight_qType: Any,  # noqa: N803
        activation_qType: Any,  # noqa: N803
        tensors_range: TensorsData | Mapping[str, Any] | None,
        nodes_to_quantize: Sequence[str] | None,
        nodes_to_exclude: Sequence[str] | None,
        op_types_to_quantize: Sequence[str] | None,
        extra_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.mode = mode
        self.static = static
        self.quantized_value_map: dict[str, QuantizedValue] = {}
        self.new_nodes: list[onnx.NodeProto] = []
        types, nodes = (weight_qType, activation_qType), (nodes_to_quantize, nodes_to_exclude)
        super().__init__(
            model,
            per_channel,
            reduce_range,
            *types,
            tensors_range,
            *nodes,
            op_types_to_quantize,
            extra_options,
        )
        self.q_matmul_const_b_only = bool(self.extra_options.get("MatMulConstBOnly", False))

    def _style(self) -> Style:
        return Style.QOPERATOR if self.mode is QuantizationMode.QLinearOps else Style.INTEGER

    def quantize_model(self) -> onnx.ModelProto:
        """Return the quantized model; ``model`` holds it too."""
        if self.static == (self.mode is QuantizationMode.QLinearOps):
            return super().quantize_model()
        self.model = ONNXModel(self._by_parameters())
        return self.model.model

    def _by_parameters(self) -> onnx.ModelProto:
        """Return the model of a mode that has no recipe: IntegerOps by ranges, QLinearOps without any.

        Conv and MatMul are quantized, by parameters that follow from the ranges that are given.
        """
        known = {n: _params(found) for n, found in (self.calculate_quantization_params() or {}).items()}
        weights = self._settings_of(self.extra_options).recipe.weights
        integers, dynamic = self.static, not self.static  # static and mixed: the mode is IntegerOps
        outputs = {} if integers else known
        wanted = Given(self._style(), weights, inputs=known, outputs=outputs, dynamic=dynamic)
        unknown = () if integers else (n.name for n in self.model.nodes() if n.output[0] not in known)
        with as_stock():
            return given.quantize(
                self.model.model,
                wanted,
                wanted=self.nodes_to_quantize or None,
                excluded=(*self.nodes_to_exclude, *unknown),
                op_types=self.op_types_to_quantize or None,
            )

    def _known(self, job: _work.Job) -> Any:
        return super()._known(job) if self.static else {}

    def calculate_quantization_params(self) -> dict[str, QuantizationParams] | None:
        """Scale and zero point of every tensor that has a range; None where no ranges are given."""
        if self.tensors_range is None:
            return None
        return {name: self._params_of_tensor(name) for name in self._ranges()}

    # ---- single tensors: what is stored goes into the model, nodes are handed over

    def add_new_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Add nodes to the model; they stay as they are."""
        added = list(nodes)
        self.new_nodes.extend(added)
        self.model.add_nodes(added)
        self.nodes_to_exclude.extend(node.name for node in added if node.name)

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """Return the names that belong to a tensor, where it was quantized."""
        found = self.quantized_value_map.get(input_name)
        if found is not None or self.model.get_initializer(f"{input_name}_scale") is None:
            return found
        kind = QuantizedValueType.Initializer if input_name in self.initializers else QuantizedValueType.Input
        return _named(input_name, kind)

    def quantize_initializer(
        self,
        weight: onnx.TensorProto,
        qType: Any,  # noqa: N803
        reduce_range: bool = False,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Add a weight as integers with one scale to the model; names of integers, zero point and scale."""
        if weight.name not in self.quantized_value_map:
            self.quantize_initializer_impl(weight, qType, reduce_range, keep_float_weight)
            self.quantized_value_map[weight.name] = _named(weight.name, QuantizedValueType.Initializer)
        return _three(self.quantized_value_map[weight.name])

    def quantize_weight_per_channel(
        self,
        weight_name: str,
        weight_qType: Any,  # noqa: N803
        channel_axis: int,
        reduce_range: bool = True,
        keep_float_weight: bool = False,
    ) -> tuple[str, str, str]:
        """Add a weight as integers with a scale for each channel; names of integers, zero point and scale."""
        if weight_name not in self.quantized_value_map:
            self.quantize_weight_per_channel_impl(
                weight_name, weight_qType, channel_axis, reduce_range, keep_float_weight
            )
            kind = QuantizedValueType.Initializer
            self.quantized_value_map[weight_name] = _named(weight_name, kind, channel_axis)
        return _three(self.quantized_value_map[weight_name])

    def quantize_activation(
        self, node: onnx.NodeProto, indices: Sequence[int], from_subgraph: bool = False
    ) -> Quantized:
        """Names of integers, zero points and scales of some inputs, and the nodes that make them.

        A stored input becomes integers in the type of activations; one that was quantized needs no node.
        """
        return self._inputs(node, indices, self._activation)

    def quantize_weight(
        self,
        node: onnx.NodeProto,
        indices: Sequence[int],
        reduce_range: bool = False,
        op_level_per_channel: bool = False,
        axis: int = -1,
        from_subgraph: bool = False,
    ) -> Quantized:
        """As :meth:`quantize_activation`, with stored inputs in the type of weights."""

        def own(name: str) -> list[onnx.NodeProto]:
            weight = self.initializers.get(name)
            if weight is None:
                return self._activation(name)
            if self.per_channel and op_level_per_channel:
                self.quantize_weight_per_channel(
                    name, self.weight_qType, axis % len(weight.dims), reduce_range
                )
            else:
                self.quantize_initializer(weight, self.weight_qType, reduce_range)
            return []

        return self._inputs(node, indices, own)

    def quantize_bias_static(
        self, bias_name: str, input_name: str, weight_name: str, beta: float = 1.0
    ) -> str:
        """Add a bias as int32 to the model; the name of the integers."""
        known = self.quantized_value_map.get(bias_name)
        if known is None:
            scales = self._scale_of(input_name), self._scale_of(weight_name)
            names = self.quantize_bias_static_impl(bias_name, *scales, beta)
            known = QuantizedValue(
                bias_name,
                names[0],
                names[1],
                names[2],
                QuantizedValueType.Initializer,
                0 if np.size(scales[1]) > 1 else None,
                node_type=names[4],
                node_qtype=names[5],
            )
            self.quantized_value_map[bias_name] = known
        return known.q_name

    def adjust_single_weight_scale_if_needed(
        self,
        bias_val: Any,
        input_scale: Any,
        weight_scale: Any,
        weight_scale_dtype: Any,
        weight_name: str,
        bias_name: str,
        qrange: Any,
        multiplicative_epsilon: float,
        idx: int | None = None,
    ) -> tuple[bool, Any]:
        """Whether a weight's scale is too small for its int32 bias, and the scale to have.

        Room is left for the sum that the bias is added to, whatever ``qrange`` and ``multiplicative_epsilon``
        say of the bias alone.
        """
        least = affine.least_weight_scale(np.asarray(bias_val), np.asarray(input_scale))
        if not np.any(least > weight_scale):
            return False, weight_scale
        return True, np.asarray(np.max(least), weight_scale_dtype)

    def _inputs(self, node: onnx.NodeProto, indices: Sequence[int], quantize: Any) -> Quantized:
        made: list[onnx.NodeProto] = []
        for index in indices:
            name = node.input[index]
            if name and name not in self.quantized_value_map:
                made += quantize(name)
        known = [self.quantized_value_map[node.input[i]] if node.input[i] else None for i in indices]
        return (
            [value.q_name if value else "" for value in known],
            [value.zp_name if value else "" for value in known],
            [value.scale_name if value else "" for value in known],
            made,
        )

    def _activation(self, name: str) -> list[onnx.NodeProto]:
        """Return the node that quantizes a tensor; its parameters are stored, or computed by the node."""
        if name in self.initializers:
            self.quantize_initializer(self.initializers[name], self.activation_qType)
            return []
        found = _named(name, QuantizedValueType.Input)
        self.quantized_value_map[name] = found
        integers, zero, scale = _three(found)
        if not self.static and name not in self._ranges():
            results = [integers, scale, zero]
            return [onnx.helper.make_node("DynamicQuantizeLinear", [name], results, f"{name}_QuantizeLinear")]
        self.model.initializer_extend(params_tensors(name, self._params_of_tensor(name)))
        return [
            onnx.helper.make_node("QuantizeLinear", [name, scale, zero], [integers], f"{name}_QuantizeLinear")
        ]

    # ---- graphs inside nodes

    def quantize_subgraph(self, subgraph: onnx.GraphProto, graph_key: str) -> onnx.GraphProto:
        """Not to be had for one graph: the option EnableSubgraph does it for all."""
        raise UnsupportedError(
            f"The graph {subgraph.name!r} at {graph_key!r} is not quantized apart from its model; give"
            " extra_options={'EnableSubgraph': True}, and quantize_model() quantizes all of them."
        )

    def quantize_node_with_sub_graph(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return a node without subgraphs as it is; for others see :meth:`quantize_subgraph`."""
        for attribute in node.attribute:
            if attribute.type in _GRAPHS:
                inner = attribute.g if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs[0]
                self.quantize_subgraph(inner, f"{node.name}:{attribute.name}")
        return node

    # ---- questions

    def has_QDQ_nodes(self) -> bool:  # noqa: N802
        """Whether the model has QuantizeLinear or DequantizeLinear."""
        return any(node.op_type in CONVERSIONS for node in self.model.nodes())

    def find_initializer_in_path(self, initializer_name: str) -> bool:
        """Whether a name is that of an initializer."""
        return initializer_name in self.initializers

    def get_tensor_type(self, tensor_name: str, mandatory: bool = False) -> int | None:
        """The element type of a tensor, or the one to assume; None, or an error, where it is not known."""
        stored = self.initializers.get(tensor_name)
        known = stored.data_type if stored is not None else self._inferred(tensor_name)
        if known is None:
            known = self.extra_options.get("DefaultTensorType")
        if known is None and mandatory:
            raise InferenceError(
                f"The type of tensor {tensor_name!r} can't be inferred; give"
                " extra_options={'DefaultTensorType': onnx.TensorProto.FLOAT}."
            )
        return known

    def _inferred(self, tensor_name: str) -> int | None:
        found = self.model.get_tensor_type(tensor_name)
        return int(found.elem_type) if found is not None and found.elem_type else None

    def is_float_tensor(self, tensor_name: str) -> bool:
        """Whether a tensor is a float that can be quantized."""
        return self.get_tensor_type(tensor_name) in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

    def contains_tensor(self, tensor_name: str) -> bool:
        """Whether the model has a tensor of this name."""
        graph = self.model.graph()
        return (
            tensor_name in self.initializers
            or any(value.name == tensor_name for value in graph.input)
            or any(tensor_name in node.output for node in graph.node)
        )


def _named(name: str, kind: QuantizedValueType, axis: int | None = None) -> QuantizedValue:
    return QuantizedValue(name, f"{name}_quantized", f"{name}_scale", f"{name}_zero_point", kind, axis)


def _three(value: QuantizedValue) -> tuple[str, str, str]:
    return value.q_name, value.zp_name, value.scale_name


def _params(found: QuantizationParams) -> QParams:
    kind = qtype_of(found["quant_type"])
    scale, zero = np.asarray(found["scale"], np.float32), np.asarray(found["zero_point"], kind.dtype)
    return QParams(scale.reshape(()), zero.reshape(()), kind)


__all__ = ["ONNXQuantizer"]

__getattr__ = elsewhere(__name__)
