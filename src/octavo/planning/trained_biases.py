"""Biases of a trained model: int32, with the product of two trained scales, which stay as they are.

But for channels that training has left next to zero: there a bias may be more than 2³¹ of these steps. The
runtime, which makes biases int32 by itself, overflows then; so the scale of the weight is raised until the
bias fits. Beside such a bias the weights do not show.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.core import affine
from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.plan import Derived, Key
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import Bias, OpRule
from octavo.planning import weights
from octavo.planning.trained import State


class Biases(State):
    """A state that can place biases; ``refused`` are nodes that stay float."""

    refused: Mapping[str, str]

    def bias(self, node: ir.Node, rule: OpRule, x: Key, w: Key) -> str | None:
        """An int32 bias; a reason where the integer operator has to have one and it does not fit."""
        index = next((i for i in range(2, len(node.inputs)) if isinstance(rule.role(i), Bias)), None)
        value = node.inputs[index] if index is not None else None
        if value is None or query.constant(value) is None:
            return None
        self.entries.pop(Key(value.name or ""), None)
        self.known.pop(Key(value.name or ""), None)
        if self._derive(value, node, node, x, w) or self.style is Style.QDQ:
            return None
        return "its bias can't be laid along the channels of its weight"

    def _derive(self, bias: ir.Value, reader: ir.Node, node: ir.Node, x: Key, w: Key) -> bool:
        px, pw, content = self.params(x), self.params(w), query.array(bias)
        if pw is None or content is None or not isinstance(pw.granularity, PerTensor | PerChannel):
            return False
        if px is not None and (px.qtype.is_float or not isinstance(px.granularity, PerTensor)):
            return False
        if node.op_type == "ConvTranspose" and query.attribute(node, "group", 1) > 1:
            return False
        weight = node.inputs[1]
        if weight is None or not weights.has_channels(bias, weight, Scheme(pw.qtype, pw.granularity)):
            return False
        fits = px is None or bool(
            np.all(affine.least_weight_scale(content.reshape(-1), px.scale) <= pw.scale)
        )
        self.entries[Key(bias.name or "", reader.name)] = Derived(tuple(x), tuple(w), make_room=not fits)  # type: ignore[arg-type]
        return True

    def layer(self, node: ir.Node, x: Key, w: Key) -> str | None:
        """The Add that is the bias of a MatMul whose result stays float between the two."""
        layer = query.linear_layer(node)
        if layer is None or layer.add is None or layer.bias is None or layer.add.name in self.refused:
            return None
        if Key(layer.bias.name or "") in self.entries:
            return None
        if self.style is Style.QDQ and not self._derive(layer.bias, layer.add, node, x, w):
            return None
        return layer.add.name
