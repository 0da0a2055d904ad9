"""Compressed weights: stored as integers, restored to float by ``Cast`` and ``Mul`` at load.

Where several values along an axis share a scale, that axis is stored as two: blocks, and places in a block.
A ``Reshape`` behind the product makes it one again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.granularity import PerBlock, Shape, normal_axis, spread
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.writer import KEEP_BYTES, integers
from octavo.errors import TableError
from octavo.model.files.io import weight_bytes
from octavo.model.graph import query
from octavo.model.graph.edit import Editor, prepend
from octavo.model.graph.tensors import computed, dims_of
from octavo.planning.resolve import Params

FLOAT = ir.DataType.FLOAT


def write(model: ir.Model, plan: Plan, params: Params) -> None:
    """Compress the weights that the plan names, in place, after the style has written its nodes."""
    if not plan.compressed:
        return
    editor = Editor(model)
    keep = weight_bytes(model) < KEEP_BYTES
    for name, entry in plan.compressed.items():
        value = model.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise TableError(
                f"The plan compresses a weight {name!r} that this model does not have; make it again with"
                " 'octavo plan'."
            )
        found, kind = params[Key(name)], entry.scheme.qtype
        limits = kind.limits(symmetric=entry.scheme.symmetric, reduced=entry.scheme.reduce_range)
        dims = tuple(dims_of(value.const_value))
        divided, scale = _broadcast(found, dims)
        stored = integers(value, found, limits, None, keep)
        if divided != dims:
            stored = _reshaped(stored, divided)
        _restore(
            editor,
            value,
            editor.constant(name + names.QUANTIZED, stored),
            editor.constant(name + names.SCALE, scale),
            divided != dims,
        )


def _broadcast(params: QParams, dims: Shape) -> tuple[Shape, npt.NDArray[Any]]:
    """Return the shape in which a weight is stored, and its scales in one that broadcasts over that."""
    match params.granularity:
        case PerBlock(size, axis) if size >= dims[axis or 0]:
            return dims, params.scale
        case PerBlock(size, axis) if dims[axis or 0] % size == 0:
            axis = normal_axis(axis, len(dims))
            divided = (*dims[:axis], dims[axis] // size, size, *dims[axis + 1 :])
            return divided, np.expand_dims(params.scale, axis + 1)
        case grain:
            return dims, spread(params.scale, dims, grain)


def _reshaped(tensor: ir.TensorProtocol, shape: Shape) -> ir.TensorProtocol:
    return computed(lambda: tensor.numpy().reshape(shape), tensor.dtype, shape)


def _restore(editor: Editor, value: ir.Value, stored: ir.Value, scale: ir.Value, is_divided: bool) -> None:
    """Replace an initializer by Cast and Mul, whose result takes over its name; a divided axis is joined."""
    name, graph = value.name or "", editor.model.graph
    cast = editor.node(
        "Cast", [stored], {"to": int(FLOAT)}, name=name + names.CAST, output=name + names.CAST, dtype=FLOAT
    )
    mul = editor.node(
        "Mul",
        [cast.outputs[0], scale],
        name=name + names.RESTORED,
        output=name + names.RESTORED,
        dtype=FLOAT,
    )
    cast.outputs[0].shape = mul.outputs[0].shape = stored.shape
    made = [cast, mul]
    if is_divided:
        dims = editor.constant(name + names.DIMS, np.array(query.static_shape(value), np.int64))
        whole = name + names.JOINED
        made.append(editor.node("Reshape", [mul.outputs[0], dims], name=whole, output=whole, dtype=FLOAT))
    result = made[-1].outputs[0]
    result.shape = value.shape
    uses = tuple(value.uses())
    for node, index in uses:
        node.replace_input_with(index, result)
    graph.initializers.pop(name)
    result.name = name
    consumers = {node for node, _ in uses}
    if len(consumers) == 1 and uses[0][0].graph is graph:
        graph.insert_before(uses[0][0], made)
    else:
        prepend(graph, made)
