"""What the ONNX standard says about a node: enough of it that later code can trust attributes and inputs.

Only standard operators are looked at, and only what would make reading a node go wrong: an attribute of
another type, an input that has to be there and is not. Everything else is for the runtime to judge.
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
    """An operator's attribute types, and how many inputs it takes at least."""

    attributes: Mapping[str, str]
    least_inputs: int


@functools.cache
def _shape(op_type: str, opset: int) -> _Shape | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    types = {name: str(attribute.type).split(".")[-1] for name, attribute in schema.attributes.items()}
    return _Shape(types, schema.min_input)


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
    if len(node.inputs) < shape.least_inputs:
        raise ModelError(
            f"The {node.op_type} node {node.name!r} has {len(node.inputs)} inputs where at least "
            f"{shape.least_inputs} are due; the model is damaged: export it again."
        )
