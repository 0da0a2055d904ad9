"""Single tensors for integer operators: what is stored goes into the model, nodes are handed over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx

from octavo.core import affine
from octavo.quantization._numbers import params_tensors
from octavo.quantization._types import QuantizedValueType
from octavo.quantization._values import QuantizedValue
from octavo.quantization.base_quantizer import BaseQuantizer

Quantized = tuple[list[str], list[str], list[str], list[onnx.NodeProto]]


class SingleTensors(BaseQuantizer):
    """The tensors that were quantized one by one, by name, and the nodes that were added for them."""

    static: bool
    quantized_value_map: dict[str, QuantizedValue]
    new_nodes: list[onnx.NodeProto]

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


def _named(name: str, kind: QuantizedValueType, axis: int | None = None) -> QuantizedValue:
    return QuantizedValue(name, f"{name}_quantized", f"{name}_scale", f"{name}_zero_point", kind, axis)


def _three(value: QuantizedValue) -> tuple[str, str, str]:
    return value.q_name, value.zp_name, value.scale_name
