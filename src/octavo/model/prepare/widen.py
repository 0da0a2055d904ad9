"""float16, bfloat16 and double models computed in float32; inputs and outputs keep their types.

ONNX Runtime's CPU has no fused integer kernel between Q/DQ of another float type, no bfloat16 Q/DQ at all,
and none for double. So the body of the model becomes float32, with a Cast at each input and output. The
CPU computes float16 in float32 anyway.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model.edit import Editor
from octavo.model.query import subgraphs

WIDE = ir.DataType.FLOAT
NARROW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")


def widen(model: ir.Model) -> int:
    """Make the body of a model float32, in place; returns how many tensors changed their type."""
    outputs = [(v, v.dtype) for v in model.graph.outputs if v.dtype in NARROW]
    changed = sum(_initializer(v) for graph in model.graphs() for v in graph.initializers.values())
    changed += sum(_node(node) for node in model.graph.all_nodes())
    _borders(model, outputs)
    return changed


def _initializer(value: ir.Value) -> int:
    tensor = value.const_value
    if tensor is None or tensor.dtype not in NARROW:
        return 0

    def compute(source: ir.TensorProtocol = tensor) -> ir.TensorProtocol:
        return ir.Tensor(np.asarray(source.numpy()).astype(np.float32))

    value.const_value = ir.LazyTensor(compute, dtype=WIDE, shape=ir.Shape(tensor.shape.numpy()), name=value.name)
    value.type = ir.TensorType(WIDE)
    return 1


def _node(node: ir.Node) -> int:
    changed = 0
    for name in _TYPE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT and attribute.value in NARROW:
            node.attributes[name] = ir.AttrInt64(name, int(WIDE))
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in NARROW:
            content = np.asarray(attribute.value.numpy()).astype(np.float32)
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.Tensor(content))
    for value in node.outputs:
        changed += _retype(value)
    for graph in subgraphs(node):
        for value in graph.inputs:
            changed += _retype(value)
    return changed


def _retype(value: ir.Value) -> int:
    if value.dtype in NARROW and isinstance(value.type, ir.TensorType):
        value.type = ir.TensorType(WIDE)
        return 1
    return 0


def _borders(model: ir.Model, outputs: list[tuple[ir.Value, ir.DataType | None]]) -> None:
    """Casts at the inputs and outputs that are not float32; both keep their names."""
    edit = Editor(model)
    graph = model.graph
    for value in graph.inputs:
        if value.dtype in NARROW:
            name = f"{value.name}_float"
            uses = tuple(value.uses())
            cast = edit.node("Cast", [value], {"to": int(WIDE)}, name=name, output=name, dtype=WIDE)
            cast.outputs[0].shape = value.shape
            for reader, index in uses:
                reader.replace_input_with(index, cast.outputs[0])
            if len(graph):
                graph.insert_before(graph[0], [cast])
            else:
                graph.append(cast)
    for value, kind in outputs:
        name = value.name or ""
        value.name = edit.values.claim(f"{name}_float")
        cast = edit.node("Cast", [value], {"to": int(kind or WIDE)}, name=value.name, output=value.name, dtype=kind)
        cast.outputs[0].shape, cast.outputs[0].name = value.shape, name
        graph.append(cast)
        for i, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[i] = cast.outputs[0]
