"""Resize reads a list with a number for each axis; some runtimes write beyond their own memory for more."""

from __future__ import annotations

import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import query


def check_resizes(model: ir.Model) -> None:
    """Raise if a Resize or Upsample is known to read scales or sizes that are no such list."""
    for node in query.nodes(model):
        if not query.is_op(node, "Resize", "Upsample"):
            continue
        for value in node.inputs[1:] if len(node.inputs) == 2 else node.inputs[2:]:  # between: the region
            dims = query.shape(value)
            if value is not None and dims is not None and not _fits(node, dims):
                raise ModelError(
                    f"The {node.op_type} node {node.name!r} reads {value.name!r} of shape "
                    f"{['?' if dim is None else dim for dim in dims]} as a list with a number for each axis; "
                    "the model is damaged: export it again."
                )


def _fits(node: ir.Node, dims: tuple[int | None, ...]) -> bool:
    named = query.attribute(node, "axes")
    axes = len(named) if named is not None else query.rank(node.inputs[0])
    return len(dims) == 1 and (dims[0] in (None, 0) or axes in (None, dims[0]))
