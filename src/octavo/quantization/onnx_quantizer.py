"""``ONNXQuantizer``: integer operators, with ranges that are given or found while the model runs.

:meth:`ONNXQuantizer.quantize_model` does all of it. The methods for single tensors are for those who write an
operator of their own: they add what is stored to the model, and hand over the nodes that compute the rest,
for :meth:`ONNXQuantizer.add_new_nodes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from octavo.core.qparams import QParams
from octavo.core.recipe import Style
from octavo.model.graph.operators import CONVERSIONS
from octavo.pipeline import given
from octavo.planning.policies.given import Given
from octavo.quantization import _work
from octavo.quantization._errors import InferenceError, UnsupportedError, as_stock
from octavo.quantization._names import elsewhere
from octavo.quantization._numbers import qtype_of
from octavo.quantization._single import SingleTensors
from octavo.quantization._tensors_data import TensorsData
from octavo.quantization._types import QuantizationMode
from octavo.quantization._values import QuantizationParams, QuantizedValue
from octavo.quantization.onnx_model import ONNXModel

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


class ONNXQuantizer(SingleTensors):
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


def _params(found: QuantizationParams) -> QParams:
    kind = qtype_of(found["quant_type"])
    scale, zero = np.asarray(found["scale"], np.float32), np.asarray(found["zero_point"], kind.dtype)
    return QParams(scale.reshape(()), zero.reshape(()), kind)


__all__ = ["ONNXQuantizer"]

__getattr__ = elsewhere(__name__)
