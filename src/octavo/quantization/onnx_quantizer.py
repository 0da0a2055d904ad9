"""``ONNXQuantizer``: integer operators, with ranges that are given or found while the model runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from octavo.quantization import _work, translate
from octavo.quantization._errors import InferenceError, UnsupportedError
from octavo.quantization._tensors_data import TensorsData
from octavo.quantization._types import QuantFormat, QuantizationMode
from octavo.quantization.base_quantizer import BaseQuantizer

_QUANTIZED = ("QuantizeLinear", "DequantizeLinear")


class ONNXQuantizer(BaseQuantizer):
    """Writes a model with QLinear operators (static) or with integer operators (dynamic)."""

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
        if static != (mode is QuantizationMode.QLinearOps):
            raise UnsupportedError(
                "QLinearOps go with static=True and IntegerOps with static=False; choose one of these pairs."
            )
        self.mode = mode
        self.static = static
        super().__init__(
            model,
            per_channel,
            reduce_range,
            weight_qType,
            activation_qType,
            tensors_range,
            nodes_to_quantize,
            nodes_to_exclude,
            op_types_to_quantize,
            extra_options,
        )
        self.q_matmul_const_b_only = bool(self.extra_options.get("MatMulConstBOnly", False))

    def _settings_of(
        self, options: Mapping[str, Any], names: translate.Names | None = None
    ) -> translate.Settings:
        request, names = self._request(options), names or translate.Names()
        if self.static:
            return translate.static(request, QuantFormat.QOperator, translate.Calibration(), names)
        return translate.with_options(
            translate.dynamic(request, names).listing(constant_weights_only=False), options
        )

    def _known(self, job: _work.Job) -> Any:
        return super()._known(job) if self.static else {}

    def has_QDQ_nodes(self) -> bool:  # noqa: N802
        """Whether the model has QuantizeLinear or DequantizeLinear."""
        return any(node.op_type in _QUANTIZED for node in self.model.nodes())

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


__all__ = ["ONNXQuantizer"]
