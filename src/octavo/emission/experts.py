"""Experts: QMoE in the place of MoE, with the weights of all experts in blocks.

A weight ``[experts, outputs, inputs]`` is stored as ``[experts, outputs, bytes]``, unsigned, and its scales
as ``[experts, outputs, blocks]``; zero points, where there are any, as ``[experts, outputs, bytes]``.
"""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from octavo.core.blocks import Array, BlockScheme
from octavo.core.plan import Key
from octavo.emission import names
from octavo.emission.nbits import PLAIN, laid_out, put_instead, stored, zero_points
from octavo.emission.writer import Writer
from octavo.model.graph import query
from octavo.ops import QMOE, Weight, rule_of

_ZERO_POINTS = 11  # the input of QMoE at which they begin


def write(writer: Writer, node: ir.Node) -> None:
    """Write QMoE in the place of MoE: each projection has a weight, its scales and its bias."""
    edit, planned, rule = writer.editor, writer.plan.nodes[node.name or ""], rule_of(node)
    operands: list[ir.Value | None] = list(node.inputs[:2])
    zeros: list[ir.Value | None] = []
    attributes: dict[str, object] = {name: found.value for name, found in node.attributes.items()}
    for index, value in enumerate(node.inputs):
        if value is None or rule is None or not isinstance(rule.role(index), Weight):
            continue
        weights = stored(writer, Key(value.name or "", node.name), PLAIN, QMOE.op_type)
        matrix, scheme = weights.matrix, weights.matrix.scheme
        experts, outputs, inputs = query.static_shape(value) or (0, 0, 0)
        shape = ir.Shape((experts, outputs, inputs * scheme.bits // 8))
        bias = node.inputs[index + 1] if index + 1 < len(node.inputs) else None
        operands += [
            weights.integers(edit, partial(_stored, matrix.scheme, shape), "UINT8", shape),
            weights.scale(edit, matrix.scale.reshape(experts, outputs, -1)),
            bias,
        ]
        if matrix.zero_point is not None:
            packed = zero_points(matrix.zero_point, scheme).reshape(experts, outputs, -1)
            zeros.append(weights.zero_point(edit, packed))
        attributes |= {"expert_weight_bits": scheme.bits, "block_size": scheme.size}
    if planned.accuracy_level:
        attributes["accuracy_level"] = planned.accuracy_level
    if zeros:
        operands += [None] * (_ZERO_POINTS - len(operands)) + zeros
    new = edit.node(
        QMOE.op_type,
        operands,
        attributes,
        name=f"{node.name}_Q",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain=QMOE.domain,
    )
    put_instead(edit, node, [new])
    writer.nodes[node.name or ""] = new


def _stored(scheme: BlockScheme, shape: ir.Shape, integers: Array) -> ir.TensorProtocol:
    """Return the integers of all experts as they are stored."""
    return ir.Tensor(laid_out(integers, scheme).reshape(shape.numpy()))
