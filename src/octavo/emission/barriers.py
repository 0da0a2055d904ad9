"""Fusion barriers: nodes that change no value and keep the runtime from rewriting others.

A float Softmax is written in another way that the runtime is faster at::

    its parts    exp(x − max) / sum
    a floor      Softmax(Clip(x, c)),   c = (the smallest of all rows' maxima) − 40

The parts of a Gelu become one operator of the runtime.

What is 40 below the largest value of its row has a share under 10⁻¹⁷, which does not show in a float32 sum.
Without the floor exp of masked scores is a subnormal float, which takes many times as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.emission.writer import MS, NodeChain, Writer
from octavo.errors import TableError
from octavo.model.graph import query
from octavo.ops import Act, Kind, rule_of
from octavo.ops.patterns import GELU_CORES
from octavo.planning.barriers import is_gelu_core, over_last_axis, read_by_unit, unit_of

_LOWEST_FLOAT = np.float32(-3.0e38)  # a maximum with it changes no signal
_AXES_BY_INPUT = 18  # the opset since which ReduceMax and ReduceMin take their axes as an input
_FLOOR_DEPTH = 40.0  # below the largest value, where exp adds nothing to a float32 sum


def write(writer: Writer, name: str) -> None:
    """Write the barrier of a node.

    Most are a Max that changes nothing. Before a layer it keeps the runtime from rounding the layer's float
    weights, or from looking for a kernel that does not exist; after a Relu or Clip, from dropping that; on
    both sides of data movement, from moving QuantizeLinear and DequantizeLinear past it, and behind it alone
    where it reads what is float. A float Add becomes a Sum, which the runtime does not fuse. A float Softmax
    becomes its parts, or, over the last axis, gets a floor.
    """
    node = writer.nodes[name]
    is_float_node = node.name not in writer.plan.nodes
    if node.op_type == "Add" and is_float_node:
        node.op_type = "Sum"
        return
    if node.op_type == "Softmax" and is_float_node:
        _Softmax(writer, node).write()
        return
    if is_gelu_core(node):
        _write_gelu(writer, node)
        return
    rule = rule_of(node)
    kind = rule.kind if rule is not None else None
    moves = kind in (Kind.DATA_MOVEMENT, Kind.LOOKUP)
    if kind is not Kind.CLAMP and not (moves and is_float_node and not _reads_quantized(writer, node)):
        reads = (i for i in range(len(node.inputs)) if rule is not None and isinstance(rule.role(i), Act))
        index = next(reads, 0)
        value = node.inputs[index]
        if value is None:
            raise TableError(f"The plan sets a fusion barrier at node {node.name!r}, which has no input.")
        barrier = _max(writer, value, f"{node.name}_guard")
        writer.before(node, [barrier])
        node.replace_input_with(index, barrier.outputs[0])
    if moves or kind is Kind.CLAMP:
        for i, value in enumerate(node.outputs):
            if query.is_float(value):
                barrier = _max(writer, value, f"{node.name}_guard_{i}")
                writer.after(value, [barrier])
                writer.replace_everywhere(value, barrier.outputs[0], keep=[barrier])


def _write_gelu(writer: Writer, core: ir.Node) -> None:
    """Write the parts of a Gelu as one operator."""
    unit = unit_of(core)
    inputs, last = read_by_unit(unit), unit[0]
    if len(inputs) != 1:
        raise TableError(f"The plan joins the Gelu around {core.name!r}, which does not read one value.")
    name, kind = f"{last.name}_gelu", last.outputs[0].dtype
    joined = writer.editor.node(
        GELU_CORES[core.op_type], inputs, name=name, output=name, dtype=kind, domain=MS
    )
    before = [value for value in last.inputs if value is not None]
    writer.replace_node(last, [joined])
    writer.drop_unused(before)


def _reads_quantized(writer: Writer, node: ir.Node) -> bool:
    names = {value.name for value in node.inputs if value is not None}
    return any(key.tensor in names for key in writer.plan.entries)


def _max(writer: Writer, value: ir.Value, name: str) -> ir.Node:
    # Behind an axis of size one the runtime reads a scalar anew for each element, 30 times as slow.
    narrow = (query.shape(value) or (None,))[-1] == 1
    other = value if narrow else writer.constant(f"{name}_lowest", np.asarray(_LOWEST_FLOAT))
    return writer.editor.node("Max", [value, other], name=name, output=name, dtype=ir.DataType.FLOAT)


class _Softmax(NodeChain):
    """The nodes that replace a float Softmax, or come before it."""

    def __init__(self, writer: Writer, softmax: ir.Node) -> None:
        super().__init__(writer, f"{softmax.name}_")
        if softmax.inputs[0] is None:
            raise TableError(f"The plan sets a fusion barrier at node {softmax.name!r}, which has no input.")
        self.softmax, self.x = softmax, softmax.inputs[0]
        self.axis = int(query.attribute(softmax, "axis", -1))

    def write(self) -> None:
        """Write a floor over the last axis, which the kernel is fast at; else the parts."""
        if over_last_axis(self.softmax):
            least = self._node("ReduceMin", [self._largest(0)], "least_max", keepdims=0)
            depth = self.shared("softmax_depth", np.float32(_FLOOR_DEPTH), key=self.axis)
            floor = self._node("Sub", [least, depth], "floor")
            raised = self._node("Clip", [self.x, floor], "raised")
            self.w.before(self.softmax, self.new)
            self.softmax.replace_input_with(0, raised)
            return
        less = self._node("Sub", [self.x, self._largest(1)], "shifted")
        power = self._node("Exp", [less], "exp")
        total = self._node("ReduceSum", [power, self._axes()], "sum", keepdims=1)
        self._node("Div", [power, total], "share")
        self.w.replace_node(self.softmax, self.new)

    def _node(self, op: str, inputs: list[ir.Value], suffix: str, **attributes: Any) -> ir.Value:
        return self.node(op, inputs, suffix, self.x.dtype, **attributes)

    def _axes(self) -> ir.Value:
        return self.shared("softmax_axes", np.array([self.axis], np.int64), key=self.axis)

    def _largest(self, keepdims: int) -> ir.Value:
        if query.opset(self.w.model) < _AXES_BY_INPUT:
            return self._node("ReduceMax", [self.x], "max", axes=[self.axis], keepdims=keepdims)
        return self._node("ReduceMax", [self.x, self._axes()], "max", keepdims=keepdims)
