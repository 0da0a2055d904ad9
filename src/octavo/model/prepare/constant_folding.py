"""Constant folding, and nodes that do nothing.

What depends on constants alone is computed once, by the runtime itself, in one session over that part of the
model. Left alone: quantization (``DequantizeLinear`` of a weight is what quantized models are made of),
random numbers, results that outgrow what they are made from, a large weight that a node which can't be folded
reads too (it would be stored twice), and half-precision weights widened on use (they would double in size).
What all results may add is bounded by the size of the model: a table of sines that a few nodes compute is
left to the runtime, which computes it at load, where storing it would cost more than quantization gains.
Several nodes may share a large weight, as the Slices do that take an LSTM's gates apart: they are folded
together, and growth is counted over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.errors import OctavoError
from octavo.model.graph import operators, query
from octavo.model.graph.edit import Editor
from octavo.model.graph.tensors import byte_size, computed
from octavo.model.runtime.session import Session
from octavo.model.runtime.session_inputs import fill

_NEVER = operators.RANDOM | operators.CONVERSIONS_OR_DYNAMIC
_LARGE_BYTES = 1 << 20  # of a weight that is not stored twice, and of a result that may always be computed
_MAX_GROWTH = 4  # times the bytes that a node reads, which its results may take
_SHARE = 8  # results may add an eighth to what the model takes in 8 bits, so that a quantized one stays small
_LEAST_BUDGET, _MOST_BUDGET = 16 << 10, 16 << 20  # bytes in 8 bits, whatever the size of the model
_LAZY_BYTES = 16 << 20  # bytes; transposing a weight of this size waits until its content is read


class Folded(NamedTuple):
    """How many nodes went, what is to be said, and the bytes that results may still add."""

    nodes: int
    notes: list[str]
    budget: int


def budget_of(model: ir.Model) -> int:
    """Return how many bytes, as a quantized model stores them, folding may add to a model."""
    stored = sum(
        _stored_bytes(value) or 0 for graph in model.graphs() for value in graph.initializers.values()
    )
    return min(max(stored // _SHARE, _LEAST_BUDGET), _MOST_BUDGET)


def fold(model: ir.Model, budget: int | None = None) -> Folded:
    """Replace what is constant by its value, within a budget (by default that of :func:`budget_of`)."""
    notes: list[str] = []
    edit = Editor(model)
    if budget is None:
        budget = budget_of(model)
    count = _fold_shapes(edit) + _fold_lazily(edit)
    found, left = _constant_nodes(model, notes, budget)
    if not found:
        return Folded(count, notes, left)
    results = [v for node in found for v in node.outputs if v.name and _needed(v, found)]
    try:
        contents = _compute(model, list(found), results)
    except OctavoError as error:
        notes.append(f"{len(found)} constant nodes are left as they are: {error}")
        return Folded(count, notes, 0)
    for value in results:
        _replace(edit, value, contents[value.name or ""])
    edit.remove(reversed(list(found)))
    return Folded(count + len(found), notes, left)


def _needed(value: ir.Value, found: dict[ir.Node, None]) -> bool:
    return value.is_graph_output() or any(node not in found for node, _ in value.uses())


def _constant_nodes(model: ir.Model, notes: list[str], budget: int) -> tuple[dict[ir.Node, None], int]:
    """Return the nodes, in order, that can be computed now, and what is left of the budget.

    A node that is left alone may keep a large weight in the model, which is then no reason to store the
    results of its other consumers as well; so candidates are dropped until nothing changes.
    """
    candidates = _Candidates()
    for node in query.nodes(model):
        if _may_fold(model, node, candidates.growth):
            candidates.add(node)
    if candidates.widened:
        notes.append(
            f"{candidates.widened} weights are stored in half precision and widened by a Cast on use."
        )
    candidates.drop_shared()
    found: dict[ir.Node, None] = {}
    for node, growth in candidates.growth.items():
        if growth <= budget and _may_fold(model, node, found):
            budget -= max(0, growth)
            found[node] = None
    if len(found) < len(candidates.growth):
        candidates.growth = {node: candidates.growth[node] for node in found}
        candidates.drop_shared()
    return dict.fromkeys(candidates.growth), budget


class _Candidates:
    """Nodes that depend on constants alone, with the bytes by which each makes the model larger."""

    def __init__(self) -> None:
        self.growth: dict[ir.Node, int] = {}
        self.widened = 0
        self._bounds: dict[ir.Value, int] = {}  # sizes of results whose shape is not known

    def add(self, node: ir.Node) -> None:
        """Take a node in, unless its results are of unknown size or far larger than what they read."""
        read = [v for v in dict.fromkeys(node.inputs) if v is not None]
        sizes = {value: self._bounds.get(value) or _bytes(value) or 0 for value in read}
        given = sum(sizes.values())
        made = [_bytes(value) for value in node.outputs]
        if None in made and node.op_type in operators.NO_LARGER:
            made = [given] * len(made)
            self._bounds.update(dict.fromkeys(node.outputs, given))
        if (
            node.op_type == "Cast"
            and given > 2048
            and query.element_type(node.inputs[0]) in query.HALF_FLOATS
        ):
            self.widened += 1
            return
        total = sum(size or 0 for size in made)
        if None in made or total > max(_LARGE_BYTES, _MAX_GROWTH * given):
            return
        added = sum(_in_8_bits(value, size or 0) for value, size in zip(node.outputs, made, strict=True))
        # What several nodes read goes away once, so each of them is credited with its share.
        self.growth[node] = added - sum(
            _in_8_bits(value, size) // len(value.consumers()) for value, size in sizes.items()
        )

    def drop_shared(self) -> None:
        """Drop the consumers of each large value that has to be kept, and all that depends on them."""
        dropped = [node for node in self.growth if self._keeps_large_input(node)]
        while dropped:
            node = dropped.pop()
            if self.growth.pop(node, None) is None:
                continue
            dropped += [user for value in node.outputs for user in value.consumers() if user in self.growth]
            for value in node.inputs:
                if value is not None and (_bytes(value) or 0) >= _LARGE_BYTES:
                    dropped += [user for user in value.consumers() if user in self.growth]

    def _keeps_large_input(self, node: ir.Node) -> bool:
        """Whether a large input would have to be kept beside the result."""
        return any(
            value.is_graph_output() or any(user not in self.growth for user in value.consumers())
            for value in node.inputs
            if value is not None and (_bytes(value) or 0) >= _LARGE_BYTES
        )


def _may_fold(model: ir.Model, node: ir.Node, found: Container[ir.Node | None]) -> bool:
    if not all(v is None or v.is_initializer() or v.producer() in found for v in node.inputs):
        return False
    if node.domain or node.op_type in _NEVER or not node.inputs or query.subgraphs(node):
        return False
    if any(value.is_graph_output() and node.graph is not model.graph for value in node.outputs):
        return False
    return all(value.type is None or isinstance(value.type, ir.TensorType) for value in node.outputs)


def _bytes(value: ir.Value) -> int | None:
    """Return the size of a tensor, where type and shape are known."""
    if value.name == "":
        return 0
    dtype, dims = query.element_type(value), query.shape(value)
    if dtype is None or dims is None or dtype == ir.DataType.STRING:
        return None
    known = tuple(dim for dim in dims if dim is not None)
    return byte_size(dtype, known) if len(known) == len(dims) else None


def _stored_bytes(value: ir.Value) -> int | None:
    size = _bytes(value)
    return None if size is None else _in_8_bits(value, size)


def _in_8_bits(value: ir.Value, size: int) -> int:
    """Return what a tensor of ``size`` bytes takes where its floats are stored in 8 bits."""
    dtype = query.element_type(value)
    return size * 8 // max(dtype.bitwidth, 8) if dtype is not None and dtype.is_floating_point() else size


def _compute(model: ir.Model, nodes: list[ir.Node], results: list[ir.Value]) -> dict[str, npt.NDArray[Any]]:
    """Run the constant part of the model."""
    proto = onnx.ModelProto(ir_version=8)
    proto.graph.name = "constants"
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    used: dict[str, ir.Value] = {}
    for node in nodes:
        proto.graph.node.add().CopyFrom(ir.serde.serialize_node(node))
        used.update((v.name or "", v) for v in node.inputs if v is not None and v.is_initializer())
    for value in results:
        proto.graph.output.add().CopyFrom(ir.serde.serialize_value(value))
    options: dict[str, str] = {}
    fill(proto, used, options)
    session = Session.open(proto.SerializeToString(), optimize=False, config=options)
    return session.run({})


def _replace(
    edit: Editor, value: ir.Value, content: npt.NDArray[Any], dtype: ir.DataType | None = None
) -> None:
    constant = edit.constant(f"{value.name}", content, dtype or query.element_type(value))
    edit.take_over(constant, value)


def _fold_shapes(edit: Editor) -> int:
    """Sizes that are known are constants, whatever the tensor holds: all of them, their product, or some."""
    done: list[ir.Node] = []
    for node in query.nodes(edit.model):
        known = _known_sizes(node)
        if known is not None and not node.outputs[0].is_graph_output():
            _replace(edit, node.outputs[0], known, ir.DataType.INT64)
            done.append(node)
    edit.remove(reversed(done))
    return len(done)


def _known_sizes(node: ir.Node) -> npt.NDArray[np.int64] | None:
    """Return what a ``Shape``, ``Size``, or ``Gather`` out of a ``Shape`` gives, where that is known."""
    if query.is_op(node, "Shape"):
        dims = _sizes(node)
        return None if dims is None or None in dims else np.array(dims, np.int64)
    if query.is_op(node, "Size"):
        dims = query.shape(node.inputs[0])
        return None if dims is None or None in dims else np.array(math.prod(d or 0 for d in dims), np.int64)
    source = node.inputs[0].producer() if query.is_op(node, "Gather") and node.inputs[0] is not None else None
    if source is None or not query.is_op(source, "Shape") or query.attribute(node, "axis", 0) not in (0, -1):
        return None
    dims, places = _sizes(source), query.array(node.inputs[1])
    if dims is None or places is None or places.dtype.kind != "i":
        return None
    if not all(-len(dims) <= p < len(dims) for p in places.reshape(-1)):
        return None
    taken = [dims[place] for place in places.reshape(-1)]
    return None if None in taken else np.array(taken, np.int64).reshape(places.shape)


def _sizes(shape: ir.Node) -> tuple[int | None, ...] | None:
    """Return the dimensions that a ``Shape`` gives."""
    dims = query.shape(shape.inputs[0])
    return None if dims is None else dims[query.attribute(shape, "start", 0) : query.attribute(shape, "end")]


def _fold_lazily(edit: Editor) -> int:
    """Transpose very large weights when they are read instead of now."""
    done: list[ir.Node] = []
    for node in query.nodes(edit.model):
        value = node.inputs[0] if node.op_type == "Transpose" and not node.domain else None
        tensor = value.const_value if value is not None and value.is_initializer() else None
        if value is None or tensor is None:
            continue
        if tensor.nbytes < _LAZY_BYTES or len(value.uses()) > 1 or node.outputs[0].is_graph_output():
            continue
        order = query.attribute(node, "perm", tuple(reversed(range(len(tensor.shape)))))
        constant = edit.constant(f"{node.outputs[0].name}", _transposed(tensor, tuple(order)))
        edit.take_over(constant, node.outputs[0])
        done.append(node)
    edit.remove(done)
    return len(done)


def _transposed(tensor: ir.TensorProtocol, order: tuple[int, ...]) -> ir.LazyTensor:
    dims = tensor.shape.numpy()
    return computed(lambda: tensor.numpy().transpose(order), tensor.dtype, [dims[axis] for axis in order])


def remove_no_ops(model: ir.Model) -> int:
    """Take out ``Identity``, ``Dropout`` in inference, and ``Cast`` to the type that is there already."""
    edit = Editor(model)
    done: list[ir.Node] = []
    for node in list(query.nodes(model)):
        if node.domain or not _does_nothing(node):
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None or not _bypass(edit, node, source, result):
            continue
        done.append(node)
        edit.remove([node])
    return len(done)


def _does_nothing(node: ir.Node) -> bool:
    match node.op_type:
        case "Identity":
            return True
        case "Dropout":
            training = query.operand(node, 2)
            if training is not None and query.scalar(training) != 0:
                return False
            return not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        case "Cast":
            return bool(query.element_type(node.inputs[0]) == query.attribute(node, "to", -1))
    return False


def _bypass(edit: Editor, node: ir.Node, source: ir.Value, result: ir.Value) -> bool:
    """Let the readers of a node read its input; a graph output keeps its name."""
    if not result.is_graph_output():
        if source.type is None:
            source.type = result.type
        if source.shape is None:
            source.shape = result.shape
        result.replace_all_uses_with(source)
        return True
    producer = source.producer()
    if producer is None or producer.graph is not node.graph or source.is_graph_output():
        return False
    edit.take_over(source, result)
    return True
