"""What the ONNX standard says about a node: enough of it that later code can trust attributes and inputs.

Only standard operators are looked at, and those of the runtime that some code reads, and only what would make
reading a node go wrong: an attribute of another type, one or an input that has to be there and is not.
Everything else is for the runtime to judge.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph.query import attributes as attributes_of

CONTRIB = "com.microsoft"
LEAST_INPUTS: Mapping[str, int] = {
    "Attention": 2, "DequantizeLinear": 2, "DynamicQuantizeLSTM": 12, "DynamicQuantizeMatMul": 3,
    "EmbedLayerNormalization": 7, "FastGelu": 1, "FusedConv": 2, "FusedGemm": 2, "FusedMatMul": 2,
    "GatherBlockQuantized": 3, "Gelu": 1, "MatMulBnb4": 3, "MatMulIntegerToFloat": 4, "MatMulNBits": 3,
    "QAttention": 5, "QEmbedLayerNormalization": 18, "QGemm": 6, "QLinearAdd": 7, "QLinearAveragePool": 4,
    "QLinearConcat": 3, "QLinearConv": 8, "QLinearGlobalAveragePool": 5, "QLinearLeakyRelu": 4,
    "QLinearMul": 7, "QLinearSigmoid": 4, "QLinearSoftmax": 5, "QLinearWhere": 9, "QuantizeLinear": 2,
    "SkipLayerNormalization": 3,
}  # fmt: skip
_CONTRIB_ATTRIBUTES = dict.fromkeys(
    ("axis", "bits", "block_size", "K", "N", "transA", "transB"), ir.AttributeType.INT
)


@dataclass(frozen=True)
class _Shape:
    """An operator's attribute types, those that it can't do without, and its least inputs and outputs."""

    attributes: Mapping[str, ir.AttributeType]
    required: tuple[str, ...]
    least_inputs: int
    least_outputs: int


def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return what the standard says of an operator, in another version where this opset has none.

    Models do import older opsets than their operators are from; some code brings them to a newer one.
    """
    if not onnx.defs.has(op_type):
        return None
    latest = onnx.defs.get_schema(op_type).since_version
    for version in (opset, latest, latest - 1):
        with contextlib.suppress(onnx.defs.SchemaError):
            schema = onnx.defs.get_schema(op_type, version)
            if not schema.deprecated:
                return schema
    return None


def _types(schema: onnx.defs.OpSchema) -> dict[str, ir.AttributeType]:
    return {
        name: ir.AttributeType[str(attribute.type).split(".")[-1]]
        for name, attribute in schema.attributes.items()
    }


@functools.cache
def _types_ever(op_type: str) -> dict[str, ir.AttributeType]:
    """Return the attributes of all versions of an operator: models carry some that were dropped."""
    found: dict[str, ir.AttributeType] = {}
    version = onnx.defs.get_schema(op_type).since_version
    while version > 0:
        try:
            schema = onnx.defs.get_schema(op_type, version)
        except onnx.defs.SchemaError:
            break
        found = {**_types(schema), **found}
        version = schema.since_version - 1
    return found


@functools.cache
def _shape(op_type: str, opset: int) -> _Shape | None:
    schema = _schema(op_type, opset)
    if schema is None:
        return None
    types = {**_types_ever(op_type), **_types(schema)}
    required = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    return _Shape(types, required, schema.min_input, schema.min_output)


def check_node(node: ir.Node, opset: int) -> None:
    """Raise if a known operator's attributes or inputs are not what its definition says."""
    shape = None
    if not node.domain:
        shape = _shape(node.op_type, opset)
    elif node.domain == CONTRIB and node.op_type in LEAST_INPUTS:
        shape = _Shape(_CONTRIB_ATTRIBUTES, (), LEAST_INPUTS[node.op_type], 1)
    if shape is None:
        return
    attributes = attributes_of(node)
    for name, attribute in attributes.items():
        due = shape.attributes.get(name)
        if due is not None and attribute.type is not due:
            raise ModelError(
                f"The attribute {name!r} of the {node.op_type} node {node.name!r} is of type "
                f"{attribute.type.name} instead of {due.name}; the model is damaged: export it again."
            )
    for name in shape.required:
        if name not in attributes:
            raise ModelError(
                f"The {node.op_type} node {node.name!r} has no attribute {name!r}, which it requires; "
                "the model is damaged: export it again."
            )
    counts = (("inputs", len(node.inputs), shape.least_inputs),
              ("outputs", len(node.outputs), shape.least_outputs))  # fmt: skip
    for what, there, least in counts:
        if there < least:
            raise ModelError(
                f"The {node.op_type} node {node.name!r} has {there} {what} and needs at least {least}; "
                "the model is damaged: export it again."
            )
