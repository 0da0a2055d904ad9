"""float16, bfloat16 and double models computed in float32; inputs and outputs keep their types.

ONNX Runtime's CPU has no fused integer kernel between Q/DQ of another float type, no bfloat16 Q/DQ at all,
and none for double. So the body of the model becomes float32, with a Cast at each input and output. The
CPU computes float16 in float32 anyway. On a model that has been widened this does nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.model.files.external import own_name
from octavo.model.graph import meta, query
from octavo.model.graph.edit import Editor, prepend, return_instead
from octavo.model.graph.query import subgraphs
from octavo.model.graph.tensors import computed, element_type
from octavo.model.prepare.constant_folding import remove_no_ops

WIDE = ir.DataType.FLOAT
NARROW = query.HALF_FLOATS | {ir.DataType.DOUBLE}
_MIN_BYTES = 4096  # bytes; a smaller weight is not worth a Cast
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
_INT, _TENSOR = ir.AttributeType.INT, ir.AttributeType.TENSOR


def widen(model: ir.Model) -> int:
    """Make the body of a model float32, in place; returns how many tensors changed their type."""
    if not _has_narrow(model):
        return 0
    borders = _borders(model)
    kept = {node for node, _ in borders}
    types = {value: value.dtype for value in model.graph.outputs}
    changed = sum(_initializer(v) for graph in query.graphs(model) for v in graph.initializers.values())
    changed += sum(_node(node) for node in list(query.nodes(model)) if node not in kept)
    edit = Editor(model)
    changed += sum(_after_input(edit, v) for v in model.graph.inputs if v.dtype in NARROW)
    for value, kind in types.items():
        if kind in NARROW and value.producer() not in kept and not value.is_graph_input():
            _before_output(edit, value, kind)
    if changed:
        remove_no_ops(model)
    return changed


def float32_names(model: ir.Model) -> dict[str, str]:
    """Return inputs and outputs of a model that was widened, and the names of the same tensors in float32."""
    found: dict[str, str] = {}
    for value in model.graph.inputs:
        for node, _ in value.uses() if value.dtype in NARROW else ():
            if _is_cast_to_wide(node):
                found[value.name or ""] = node.outputs[0].name or ""
    for node, value in _borders(model):
        found[value.name or ""] = (node.inputs[0].name if node.inputs[0] is not None else None) or ""
    return {outer: inner for outer, inner in found.items() if inner.startswith(f"{outer}_float")}


def store_narrow(model: ir.Model) -> int:
    """Store the large weights that are still float as they were, with a Cast behind; returns how many.

    The runtime folds the Cast when it loads the model, so only the file is smaller.
    """
    edit = Editor(model)
    casts: list[ir.Node] = []
    for value in list(query.initializers(model.graph).values()):
        if type(value.const_value) is not ir.LazyTensor or value.is_graph_output():
            continue
        tensor = meta.narrow(value)
        if tensor is None or tensor.dtype == ir.DataType.DOUBLE or tensor.nbytes < _MIN_BYTES:
            continue
        name = f"{value.name}_float"
        cast = edit.node("Cast", [value], {"to": int(WIDE)}, name=name, dtype=WIDE, shape=value.shape)
        for node, index in tuple(value.uses()):
            if node is not cast:
                node.replace_input_with(index, cast.outputs[0])
        value.const_value, value.type = own_name(tensor, value.name), ir.TensorType(tensor.dtype)
        casts.append(cast)
    prepend(edit.model.graph, casts)
    return len(casts)


def _has_narrow(model: ir.Model) -> bool:
    """Whether there is anything to do, by a look at each value that costs next to nothing."""
    for graph in query.graphs(model):
        tensors = (v.const_value for v in query.initializers(graph).values())
        if any(t is not None and element_type(t) in NARROW for t in tensors):
            return True
        if any(_is_narrow(v.type) for v in graph.inputs):
            return True
    for node in query.nodes(model):
        for attribute in query.attributes(node).values():
            kind = attribute.type
            if (kind is _INT or kind is _TENSOR) and _names_narrow(attribute):
                return True
        for value in node.outputs:
            if _is_narrow(value.type):
                return True
    return False


def _is_narrow(kind: ir.TypeProtocol | None) -> bool:
    if kind is None:
        return False
    dtype = kind.dtype
    return dtype is not WIDE and dtype in NARROW


def _names_narrow(attribute: ir.Attr) -> bool:
    if attribute.type == _TENSOR:
        return not attribute.is_ref() and attribute.value.dtype in NARROW
    return attribute.name in _TYPE_ATTRIBUTES and attribute.value in NARROW


def _borders(model: ir.Model) -> list[tuple[ir.Node, ir.Value]]:
    """Return the Casts at outputs that an earlier widening has put there."""
    found = []
    for value in model.graph.outputs:
        node = value.producer()
        if node is not None and node.op_type == "Cast" and value.dtype in NARROW:
            source = node.inputs[0]
            if source is not None and source.dtype == WIDE:
                found.append((node, value))
    return found


def _float32(content: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Return values in float32; what is beyond it becomes the largest float32 rather than infinite."""
    if content.dtype != np.float64:
        return content.astype(np.float32)
    top = float(np.finfo(np.float32).max)
    return np.where(np.isfinite(content), np.clip(content, -top, top), content).astype(np.float32)


def _initializer(value: ir.Value) -> int:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in NARROW:
        return 0

    source = tensor
    value.const_value = computed(
        lambda: _float32(np.asarray(source.numpy())), WIDE, source.shape.numpy(), name=value.name
    )
    meta.set_narrow(value, tensor)
    value.type = ir.TensorType(WIDE)
    return 1


def _node(node: ir.Node) -> int:
    for name in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT and attribute.value in NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(WIDE))
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in NARROW:
            content = _float32(np.asarray(attribute.value.numpy()))
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.Tensor(content))
    inside = [value for graph in subgraphs(node) for value in graph.inputs]
    return sum(_retype(value) for value in (*node.outputs, *inside))


def _retype(value: ir.Value) -> int:
    kind = value.type
    inner = kind
    while isinstance(inner, ir.SequenceType | ir.OptionalType):
        inner = inner.elem_type
    if kind is None or not isinstance(inner, ir.TensorType) or inner.dtype not in NARROW:
        return 0
    value.type = _rebuilt(kind)
    return 1


def _rebuilt(kind: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(kind, ir.SequenceType):
        return ir.SequenceType(_rebuilt(kind.elem_type))
    if isinstance(kind, ir.OptionalType):
        return ir.OptionalType(_rebuilt(kind.elem_type))
    return ir.TensorType(WIDE)


def _after_input(edit: Editor, value: ir.Value) -> int:
    """Put a Cast between an input and its readers, unless they are such Casts already."""
    uses = [(node, i) for node, i in value.uses() if not _is_cast_to_wide(node)]
    if not uses:
        return 0
    name = f"{value.name}_float"
    cast = edit.node("Cast", [value], {"to": int(WIDE)}, name=name, dtype=WIDE, shape=value.shape)
    for reader, index in uses:
        reader.replace_input_with(index, cast.outputs[0])
    prepend(edit.model.graph, [cast])
    return 1


def _is_cast_to_wide(node: ir.Node) -> bool:
    attribute = node.attributes.get("to")
    return node.op_type == "Cast" and not node.domain and attribute is not None and attribute.value == WIDE


def _before_output(edit: Editor, value: ir.Value, kind: ir.DataType | None) -> None:
    """Put a Cast before an output that gives it its type back, under its name."""
    graph = edit.model.graph
    name = value.name or ""
    value.name = edit.values.claim(f"{name}_float")
    to = {"to": int(kind or WIDE)}
    cast = edit.node("Cast", [value], to, name=value.name, dtype=kind, shape=value.shape)
    cast.outputs[0].name = name
    graph.append(cast)
    return_instead(graph, value, cast.outputs[0])
