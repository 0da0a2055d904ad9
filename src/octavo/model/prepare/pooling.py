"""A mean over all spatial axes is a GlobalAveragePool: that has an integer kernel, ReduceMean has none."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor


def pool(model: ir.Model) -> int:
    """Write ``ReduceMean`` over axes 2 … of an image as ``GlobalAveragePool`` (and ``Flatten``); how many."""
    edit = Editor(model)
    found = [node for node in query.nodes(model) if _is_pool(node)]
    for node in found:
        name = node.name or "ReduceMean"
        out = node.outputs[0].name or name
        kept = bool(query.attribute(node, "keepdims", 1))
        edit.nodes.taken.discard(name)
        mean = edit.node(
            "GlobalAveragePool",
            [node.inputs[0]],
            name=name,
            output=f"{out}_mean",
            dtype=node.outputs[0].dtype,
        )
        before = node.inputs[0].shape if node.inputs[0] is not None else None
        if before is not None:
            mean.outputs[0].shape = ir.Shape([*before[:2], *([1] * (len(before) - 2))])
        new = [mean]
        if not kept:
            flat = edit.node(
                "Flatten",
                mean.outputs,
                {"axis": 1},
                name=f"{name}_flat",
                output=out,
                dtype=node.outputs[0].dtype,
            )
            new.append(flat)
        node.append(new)
        edit.take_over(new[-1].outputs[0], node.outputs[0])
        edit.remove([node])
        edit.nodes.taken.add(name)
    return len(found)


def _is_pool(node: ir.Node) -> bool:
    if node.op_type != "ReduceMean" or node.domain or not query.is_float(node.inputs[0]):
        return False
    rank = query.rank(node.inputs[0])
    axes = query.attribute(node, "axes", None)
    if axes is None and len(node.inputs) > 1:
        axes = query.array(node.inputs[1])
    if rank is None or rank < 3 or axes is None:
        return False
    spatial = {int(axis) % rank for axis in np.ravel(axes)} == set(range(2, rank))
    return spatial and not (_is_of_squares(node.inputs[0]) or _is_taken_off(node))


def _is_taken_off(mean: ir.Node) -> bool:
    """Whether a mean is taken off its own values: in a norm, which the runtime has one operator for."""
    readers = query.readers(mean.outputs[0])
    return any(query.is_op(reader, "Sub") and reader.inputs[0] is mean.inputs[0] for reader in readers)


def _is_of_squares(value: ir.Value | None) -> bool:
    """Whether a mean of this value belongs to a norm."""
    producer = value.producer() if value is not None else None
    if producer is None:
        return False
    return producer.op_type == "Pow" or (
        producer.op_type == "Mul" and producer.inputs[0] is producer.inputs[1]
    )
