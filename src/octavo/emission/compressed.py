"""Compressed weights: stored as integers, restored to float by ``Cast`` and ``Mul`` at load."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from octavo.core.granularity import PerBlock, spread
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.writer import KEEP_BYTES, integers, prepend
from octavo.errors import TableError
from octavo.model.files.io import weight_bytes
from octavo.model.graph.edit import Editor
from octavo.model.graph.tensors import dims_of
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
        scale = _broadcast(found, tuple(dims_of(value.const_value)))
        _restore(
            editor,
            value,
            editor.constant(name + names.QUANTIZED, integers(value, found, limits, None, keep)),
            editor.constant(name + names.SCALE, scale),
        )


def _broadcast(params: QParams, dims: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the scales in a shape that broadcasts over the weight, as blocks of a whole axis do already."""
    match params.granularity:
        case PerBlock(size, axis) if size >= dims[axis or 0]:
            return params.scale
        case grain:
            return spread(params.scale, dims, grain)


def _restore(editor: Editor, value: ir.Value, stored: ir.Value, scale: ir.Value) -> None:
    """Replace an initializer by Cast and Mul, whose result takes over its name."""
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
    cast.outputs[0].shape = mul.outputs[0].shape = value.shape
    uses = tuple(value.uses())
    for node, index in uses:
        node.replace_input_with(index, mul.outputs[0])
    graph.initializers.pop(name)
    mul.outputs[0].name = name
    consumers = {node for node, _ in uses}
    if len(consumers) == 1 and uses[0][0].graph is graph:
        graph.insert_before(uses[0][0], [cast, mul])
    else:
        prepend(graph, [cast, mul])
