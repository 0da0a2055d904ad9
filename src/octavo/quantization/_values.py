"""Records of quantized tensors, names of tensors, and small searches, as stock users know them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto, TensorProto

from octavo.quantization._types import QuantizedValueType

QUANT_OP_NAME = "QuantizeLinear"
DEQUANT_OP_NAME = "DequantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 2**31  # bytes that one protobuf message holds


@dataclass
class QuantizedInitializer:
    """A weight and what it was quantized with."""

    name: str
    initializer: TensorProto
    rmins: Any
    rmaxs: Any
    zero_points: Any
    scales: Any
    data: Any = field(default_factory=list)
    quantized_data: Any = field(default_factory=list)
    axis: int | None = None


class QuantizedValue:
    """The names that belong to a quantized tensor."""

    def __init__(
        self,
        name: str,
        new_quantized_name: str,
        scale_name: str,
        zero_point_name: str,
        quantized_value_type: QuantizedValueType,
        axis: int | None = None,
        node_type: str | None = None,
        node_qtype: Any = None,
        scale_type: Any = None,
    ) -> None:
        self.original_name = name
        self.q_name = new_quantized_name
        self.scale_name = scale_name
        self.zp_name = zero_point_name
        self.value_type = quantized_value_type
        self.axis = axis
        self.node_type = node_type
        self.node_qtype = node_qtype
        self.scale_type = scale_type


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
        """Return the value of a name."""
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


@dataclass
class BiasToQuantize:
    """A bias, and the input and the weight whose scales it takes."""

    bias_name: str
    input_name: str
    weight_name: str


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """Return an attribute as a keyword argument of ``onnx.helper.make_node``."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute)}


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """Return the first item of this name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: str, elem_list: Sequence[str]) -> int:
    """Return the last place of a name in a list, -1 where it is not there."""
    return max((i for i, name in enumerate(elem_list) if name == elem_name), default=-1)


def get_mul_node(inputs: Sequence[str], output: str, name: str) -> NodeProto:
    """Return a Mul node."""
    return onnx.helper.make_node("Mul", list(inputs), [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """Return the path with something added to the file's name, before its ending."""
    return filename.with_name(filename.stem + identifier + filename.suffix)


def add_quant_suffix(tensor_name: str) -> str:
    """Return the name of a tensor's QuantizeLinear node."""
    return f"{tensor_name}_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return the name of the float tensor behind a quantized graph output."""
    return tensor_name + QUANT_INPUT_SUFFIX


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return the name of a tensor's quantized form."""
    return f"{tensor_name}_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return the name of a tensor's DequantizeLinear node."""
    return f"{tensor_name}_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return the name of what a DequantizeLinear node reads."""
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """The name of a tensor after the round trip through its quantized type."""
    return tensor_name + DEQUANT_OUTPUT_SUFFIX
