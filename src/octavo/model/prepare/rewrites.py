"""Single operators in the form that has an integer kernel, or that every runtime reads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.prepare.graph_patterns import reduced_axes

# ---- Biases in the form that quantization knows
#
# Each layer has a bias of its own, as one that two layers share has another integer scale in each; and the
# bias of a linear layer is a vector, where exporters from TensorFlow write ``[1, N]`` or ``[1, 1, N]``.

_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LayerNormalization": 2, "InstanceNormalization": 2}


def own_biases(model: ir.Model) -> int:
    """Give every layer but the first that reads a bias a copy of it, in place; returns how many were made."""
    edit = Editor(model)
    seen: dict[ir.Value, int] = {}
    made = 0
    for node in query.nodes(model):
        index = _BIAS.get(node.op_type) if not node.domain else None
        value = node.inputs[index] if index is not None and index < len(node.inputs) else None
        if value is None or index is None or not value.is_initializer() or value.const_value is None:
            continue
        if value not in seen:
            seen[value] = 0
            continue
        copy = edit.constant(f"{value.name}{seen[value]}", np.asarray(value.const_value.numpy()))
        seen[value] += 1
        node.replace_input_with(index, copy)
        made += 1
    return made


def flat_biases(model: ir.Model) -> int:
    """Write what is added to a linear layer as a vector where it is one; returns how many were changed."""
    edit = Editor(model)
    changed = 0
    for node in query.nodes(model):
        layer = query.linear_layer(node)
        add = query.only_reader(node.outputs[0]) if layer is not None and layer.add is None else None
        if layer is None or add is None or add.op_type != "Add" or add.domain:
            continue
        index = 0 if add.inputs[1] is node.outputs[0] else 1
        added, columns = add.inputs[index], query.shape(layer.weight)
        if added is None or columns is None or not _is_row(added, columns[1], query.rank(node.outputs[0])):
            continue
        tensor = query.constant(added)
        if tensor is not None:
            flat = edit.constant(f"{added.name}_flat", np.asarray(tensor.numpy()).reshape(-1))
            add.replace_input_with(index, flat)
            changed += 1
    return changed


def _is_row(value: ir.Value, columns: int | None, most: int | None) -> bool:
    """Whether a value is one row of this many columns, and adding it leaves the rank as it is."""
    dims = query.shape(value)
    if dims is None or most is None or not 2 <= len(dims) <= most:
        return False
    return dims[-1] == columns and all(size == 1 for size in dims[:-1])


# ---- A mean over all spatial axes is a GlobalAveragePool: that has an integer kernel, ReduceMean has none


def pool_means(model: ir.Model) -> int:
    """Write ``ReduceMean`` over axes 2 … of an image as ``GlobalAveragePool`` (and ``Flatten``); how many."""
    edit = Editor(model)
    found = [node for node in query.nodes(model) if _is_pool(node)]
    for node in found:
        name = node.name or "ReduceMean"
        out = node.outputs[0].name or name
        kept = bool(query.attribute(node, "keepdims", 1))
        edit.nodes.taken.discard(name)
        source, kind = node.inputs[0], node.outputs[0].dtype
        before = source.shape if source is not None else None
        dims = ir.Shape([*before[:2], *([1] * (len(before) - 2))]) if before is not None else None
        mean = edit.node(
            "GlobalAveragePool", [source], name=name, output=f"{out}_mean", dtype=kind, shape=dims
        )
        new = [mean]
        if not kept:
            flat = edit.node(
                "Flatten", mean.outputs, {"axis": 1}, name=f"{name}_flat", output=out, dtype=kind
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
    rank, axes = query.rank(node.inputs[0]), reduced_axes(node)
    if rank is None or rank < 3 or axes is None:
        return False
    spatial = {axis % rank for axis in axes} == set(range(2, rank))
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


# ---- Resize reads a list with a number for each axis; some runtimes write beyond their own memory for more


def check_resizes(model: ir.Model) -> None:
    """Raise if a Resize or Upsample is known to read scales or sizes that are not such a list."""
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
    named = query.attribute(node, "axes") if node.op_type == "Resize" else None
    axes = len(named) if named is not None else query.rank(node.inputs[0])
    return len(dims) == 1 and (dims[0] in (None, 0) or axes in (None, dims[0]))
