"""Nodes whose results no memory holds: a few bytes of ``Expand`` can ask for more than any machine has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.graph.meta import describe
from octavo.model.graph.operators import SIZED_BY_CONSTANTS
from octavo.model.graph.tensors import byte_size

_LARGEST_RESULT = 16 << 30  # bytes of one tensor; the largest activations of real models are a tenth of it
_SMALL_ELEMENTS = _LARGEST_RESULT >> 5  # elements; fewer are below that in every type
_MOST_AXES = 64  # numbers in a shape


def refuse_oversized(model: ir.Model) -> None:
    """Raise for a node that is known to make a tensor beyond all bounds; the runtime would try to.

    Before shape inference the operators that make large tensors of small constants tell by themselves.
    """
    for node in query.nodes(model):
        made = _made_shape(node) if node.op_type in SIZED_BY_CONSTANTS else None
        for value in node.outputs:
            if made is None and value.shape is None:
                continue
            dims = made or query.static_shape(value)
            if not dims or math.prod(dims) < _SMALL_ELEMENTS:
                continue
            kind = query.element_type(value) or ir.DataType.FLOAT
            if kind in (ir.DataType.STRING, ir.DataType.UNDEFINED):
                continue
            size = byte_size(kind, dims)
            if size >= _LARGEST_RESULT:
                raise ModelError(
                    f"The {node.op_type} node {node.name!r} of {describe(model)} makes a tensor of "
                    f"{size / 2**30:.0f} GiB (shape {list(dims)}), and {_LARGEST_RESULT >> 30} GiB are the "
                    "most that is computed; export the model with smaller sizes."
                )


def _made_shape(node: ir.Node) -> tuple[int, ...] | None:
    """Return the shape that an operator computes from constants alone, if they are known."""
    if query.is_op(node, "ConstantOfShape", "Expand") and node.inputs:
        sizes = _numbers(node.inputs[-1])
        known = sizes is not None and bool(np.isfinite(sizes).all())
        return tuple(max(int(size), 0) for size in sizes.reshape(-1)) if sizes is not None and known else None
    if query.is_op(node, "Range") and len(node.inputs) == 3:
        ends = [_numbers(value) for value in node.inputs]
        start, limit, step = (float(end.flat[0]) if end is not None and end.size else 0.0 for end in ends)
        count = (limit - start) / step if step else 0.0
        return (math.ceil(count),) if 0 < count < math.inf else None
    return None


def _numbers(value: ir.Value | None) -> npt.NDArray[Any] | None:
    """Return the content of a small constant: an initializer, or what a ``Constant`` node holds."""
    found = query.array(value, limit=_MOST_AXES)
    producer = value.producer() if value is not None else None
    if found is None and producer is not None and query.is_op(producer, "Constant"):
        held = query.attribute(producer, "value")
        if isinstance(held, ir.TensorProtocol) and held.size <= _MOST_AXES:
            found = np.asarray(held.numpy())
    return found if found is not None and found.dtype.kind in "iuf" else None
