"""What the ONNX standard says about a node: enough of it that later code can trust attributes and inputs.

Only standard operators are looked at, and only what would make reading a node go wrong: an attribute of
another type, one or an input that has to be there and is not. Everything else is for the runtime to judge.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from octavo.errors import ModelError


@dataclass(frozen=True)
class _Shape:
    """An operator's attribute types, those that it can't do without, and its least inputs and outputs."""

    attributes: Mapping[str, str]
    required: tuple[str, ...]
    least_inputs: int
    least_outputs: int


@functools.cache
def _shape(op_type: str, opset: int) -> _Shape | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    types = {name: str(attribute.type).split(".")[-1] for name, attribute in schema.attributes.items()}
    required = tuple(name for name, attribute in schema.attributes.items() if attribute.required)
    return _Shape(types, required, schema.min_input, schema.min_output)


def check_node(node: ir.Node, opset: int) -> None:
    """Raise if a standard operator's attributes or inputs are not what the standard says."""
    if node.domain:
        return
    shape = _shape(node.op_type, opset)
    if shape is None:
        return
    for name, attribute in node.attributes.items():
        due = shape.attributes.get(name)
        if due is not None and attribute.type.name != due:
            raise ModelError(
                f"The attribute {name!r} of the {node.op_type} node {node.name!r} is of type "
                f"{attribute.type.name} where {due} is due; the model is damaged: export it again."
            )
    lost = next((name for name in shape.required if name not in node.attributes), None)
    if lost is not None:
        raise ModelError(
            f"The {node.op_type} node {node.name!r} has no attribute {lost!r}, which it can't do without; "
            "the model is damaged: export it again."
        )
    for what, there, least in (
        ("inputs", len(node.inputs), shape.least_inputs),
        ("outputs", len(node.outputs), shape.least_outputs),
    ):
        if there < least:
            raise ModelError(
                f"The {node.op_type} node {node.name!r} has {there} {what} where at least {least} are due; "
                "the model is damaged: export it again."
            )
