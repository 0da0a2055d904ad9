"""The placement ``listed`` in QDQ: a rule for each operator that has one, all floats for the others."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Key
from octavo.model import query
from octavo.planning.listed import CLAMPS, FLOAT_INPUT, Listed, is_stored, name


class ListedPairs(Listed):
    """QuantizeLinear and DequantizeLinear around operators; one without a rule has all floats quantized."""

    def decide(self, node: ir.Node) -> None:
        """Place the entries of one node."""
        before = len(self.entries)
        way = _PAIRS.get(node.op_type)
        if way is None:
            self._all(node)
        else:
            way(self, node)
        if len(self.entries) > before or node.name in self.absorbed or self._touches(node):
            if node.name not in self.reasons and node.name not in self.absorbed:
                self.take(node)
        elif node.name not in self.reasons:
            self.skip(node, "it has no float values to quantize")

    def _touches(self, node: ir.Node) -> bool:
        return any(v in self.level for v in (*node.inputs, *node.outputs) if v is not None)

    def _all(self, node: ir.Node) -> None:
        for value in node.inputs:
            self.activation(value)
        for value in node.outputs:
            self.result(node, value)

    def _product(self, node: ir.Node) -> None:
        self.activation(node.inputs[0])
        self.weight(node, 1)
        self.bias(node)
        self.result(node, node.outputs[0])

    def _matmul(self, node: ir.Node) -> None:
        self.weight(node, 0)
        self.weight(node, 1)
        self.result(node, node.outputs[0])

    def _clamp(self, node: ir.Node) -> None:
        first, output = node.inputs[0], node.outputs[0]
        if first is None or first not in self.level:
            self.skip(node, FLOAT_INPUT)
            return
        if not self.holds(node) or node.op_type in self.listing.float_outputs:
            self.result(node, output)
            return
        del self.entries[Key(name(first))]
        self.level.discard(first)
        self.activation(output)
        self.absorbed[node.name or ""] = f"the quantized range of {name(output)} is that of the clamp"

    def _move(self, node: ir.Node) -> None:
        if self.listing.move_anything:
            self.activation(node.inputs[0])
        self._moved(node)

    def _moved(self, node: ir.Node) -> None:
        if node.inputs[0] not in self.level:
            self.skip(node, FLOAT_INPUT)
            return
        for value in node.outputs:
            self.same(node, value)

    def _lookup(self, node: ir.Node) -> None:
        if self.listing.move_anything or is_stored(node.inputs[0]):
            self.activation(node.inputs[0])
        self._moved(node)

    def _split(self, node: ir.Node) -> None:
        self.activation(node.inputs[0])
        self._moved(node)

    def _pad(self, node: ir.Node) -> None:
        self.activation(node.inputs[0])
        fill = node.inputs[2] if len(node.inputs) > 2 else None
        if fill is None or query.attribute(node, "mode", "constant") != "constant":
            self._moved(node)
            return
        if query.scalar(fill) == 0.0:
            self._moved(node)
        else:
            self.result(node, node.outputs[0])
        self.activation(fill)

    def _choice(self, node: ir.Node) -> None:
        chosen = node.inputs[1:3]
        if not self.listing.move_anything and not all(v in self.level for v in chosen):
            self.skip(node, FLOAT_INPUT)
            return
        for value in chosen:
            self.activation(value)
        self.result(node, node.outputs[0])

    def _norm(self, node: ir.Node) -> None:
        self.activation(node.inputs[0])
        self.weight(node, 1)
        self.bias(node)
        self.result(node, node.outputs[0])

    def _first(self, node: ir.Node) -> None:
        self.activation(node.inputs[0])
        self.result(node, node.outputs[0])


_PAIRS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), ListedPairs._product),
    **dict.fromkeys(CLAMPS, ListedPairs._clamp),
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "MaxPool", "AveragePool",
         "Resize", "TopK"),
        ListedPairs._move,
    ),
    **dict.fromkeys(("Gather", "GatherElements"), ListedPairs._lookup),
    **dict.fromkeys(
        ("InstanceNormalization", "LayerNormalization", "BatchNormalization"), ListedPairs._norm
    ),
    "MatMul": ListedPairs._matmul,
    "Split": ListedPairs._split,
    "Pad": ListedPairs._pad,
    "Where": ListedPairs._choice,
    "CumSum": ListedPairs._first,
}  # fmt: skip
