"""IntegerOps: MatMulInteger and ConvInteger on activations quantized at run time (or by fixed parameters).

::

    x → DynamicQuantizeLinear → (q, s, z);   MatMulInteger(q, W, z) → Cast → · (s · W_scale) → + bias

The runtime fuses the whole line into one operator. Results are float, so that nothing else changes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerChannel
from octavo.core.plan import Constant, Dynamic, Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Style
from octavo.emission import names
from octavo.emission.forms import Quantized, fill
from octavo.emission.special import lookup, recurrent
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.model.query import attribute, rank
from octavo.ops import rule_of
from octavo.planning.resolve import Params


def emit(model: ir.Model, plan: Plan, params: Params) -> None:
    """Write the plan into the model, in place."""
    _Emitter(Writer(model, plan, params)).run()


class _Emitter:
    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.plan = writer.plan
        self.inputs: dict[tuple[ir.Value, str], Quantized] = {}
        self.weights: list[ir.Value] = []

    def run(self) -> None:
        for name, planned in self.plan.nodes.items():
            node = self.w.nodes[name]
            match planned.form:
                case "DynamicQuantizeLSTM":
                    self.weights.extend(recurrent(self.w, node))
                case "Gather":
                    self.weights.extend(lookup(self.w, node))
                case "MatMulInteger" | "ConvInteger":
                    self._product(node, planned.form)
                case _:
                    self._direct(node)
        self.w.drop_unused(self.weights)

    def _product(self, node: ir.Node, form: str) -> None:
        x = self._activation(node)
        weight = node.inputs[1]
        if weight is None:
            raise TableError(f"Node {node.name!r} has no weight.")
        key = Key(weight.name or "", node.name)
        params = self.w.params[key]
        turned = bool(node.op_type == "Gemm" and attribute(node, "transB", 0))
        integers = self.w.quantized_weight(key, layout=(1, 0) if turned else None)
        zero = self._weight_zero(params, key.tensor, form)
        scale = self.w.constant(key.tensor + names.SCALE, self._laid_out(params, node))
        self.weights.append(weight)
        self._line(node, form, x, Quantized(integers, scale, zero))

    def _line(self, node: ir.Node, form: str, x: Quantized, w: Quantized) -> None:
        """The chain of nodes from integers back to float."""
        base = node.outputs[0].name or ""
        edit = self.w.editor
        source = x.integers
        new: list[ir.Node] = []
        if node.op_type == "Gemm" and attribute(node, "transA", 0):
            turn = edit.node("Transpose", [source], {"perm": [1, 0]}, name=base + "_A", output=base + "_A", dtype=source.dtype)
            new.append(turn)
            source = turn.outputs[0]
        operands = [source, w.integers, x.zero, w.zero]
        while operands and operands[-1] is None:
            operands.pop()
        kept = node.attributes.values() if form == "ConvInteger" else ()
        total = edit.node(form, operands, name=(node.name or base) + "_quant", output=base + "_int32", dtype=ir.DataType.INT32)
        for item in kept:
            total.attributes[item.name] = item
        cast = edit.node("Cast", [total.outputs[0]], {"to": int(ir.DataType.FLOAT)}, name=base + "_float", output=base + "_float", dtype=ir.DataType.FLOAT)
        scales = edit.node("Mul", [x.scale, w.scale], name=base + "_scales", output=base + "_scales", dtype=ir.DataType.FLOAT)
        last = edit.node("Mul", [cast.outputs[0], scales.outputs[0]], name=base + "_scaled", output=base + "_scaled", dtype=ir.DataType.FLOAT)
        new += [total, cast, scales, last]
        alpha = attribute(node, "alpha", 1.0) if node.op_type == "Gemm" else 1.0
        if alpha != 1.0:
            factor = self.w.constant(base + "_alpha", np.asarray(alpha, np.float32))
            last = edit.node("Mul", [last.outputs[0], factor], name=base + "_alpha", output=base + "_times_alpha", dtype=ir.DataType.FLOAT)
            new.append(last)
        bias = self._bias(node)
        if bias is not None:
            last = edit.node("Add", [last.outputs[0], bias], name=base + "_bias", output=base + "_biased", dtype=ir.DataType.FLOAT)
            new.append(last)
        if node.graph is None:
            raise TableError(f"Node {node.name!r} belongs to no graph.")
        node.graph.insert_before(node, new)
        name = node.outputs[0].name or ""
        edit.take_over(last.outputs[0], node.outputs[0])
        self.w.values[name] = last.outputs[0]
        edit.remove([node])

    def _bias(self, node: ir.Node) -> ir.Value | None:
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is None or node.op_type != "Conv":
            return bias
        spatial = (rank(node.inputs[1]) or 2) - 2
        shape = self.w.constant((bias.name or "") + "_shape", np.asarray([1, -1] + [1] * spatial, np.int64))
        lifted = self.w.editor.node("Reshape", [bias, shape], name=f"{node.name}_bias_shape", output=f"{node.name}_bias", dtype=ir.DataType.FLOAT)
        if node.graph is not None:
            node.graph.insert_before(node, [lifted])
        return lifted.outputs[0]

    def _laid_out(self, params: QParams, node: ir.Node) -> np.ndarray:  # type: ignore[type-arg]
        """Scales per channel, shaped so that they meet the channels of the product."""
        if isinstance(params.granularity, PerChannel) and node.op_type == "Conv":
            spatial = (rank(node.inputs[1]) or 2) - 2
            return params.scale.reshape(-1, *([1] * spatial))
        return params.scale

    def _weight_zero(self, params: QParams, name: str, form: str) -> ir.Value | None:
        """The weight's zero point; left out where it is zero, and scalar where the kernel takes no other."""
        if not params.zero_point.astype(np.int64).any():
            return None
        if form == "ConvInteger" and params.zero_point.ndim:
            first = params.zero_point.reshape(-1)[0]
            if np.any(params.zero_point != first):
                raise TableError(f"Weight {name!r}: ConvInteger takes one zero point for all channels; use symmetric weights.")
            return self.w.constant(name + names.ZERO_POINT, first, params.qtype)
        return self.w.constant(name + names.ZERO_POINT, params.zero_point, params.qtype)

    def _activation(self, node: ir.Node) -> Quantized:
        value = node.inputs[0]
        if value is None:
            raise TableError(f"Node {node.name!r} has no input.")
        key = self.plan.lookup(value.name or "", node.name or "")
        entry = self.plan.entries[key] if key is not None else None
        if key is None or entry is None:
            raise TableError(f"The plan quantizes node {node.name!r} but not its input {value.name!r}.")
        slot = (value, str(entry))
        if slot not in self.inputs:
            self.inputs[slot] = self._dynamic(value) if isinstance(entry, Dynamic) else self._static(value, key)
        return self.inputs[slot]

    def _dynamic(self, value: ir.Value) -> Quantized:
        base = value.name or ""
        outputs = [
            ir.Value(name=self.w.editor.values.claim(base + suffix), type=ir.TensorType(kind))
            for suffix, kind in (
                (names.QUANTIZED, ir.DataType.UINT8),
                (names.SCALE, ir.DataType.FLOAT),
                (names.ZERO_POINT, ir.DataType.UINT8),
            )
        ]
        node = ir.Node("", "DynamicQuantizeLinear", [value], outputs=outputs, name=self.w.editor.nodes.claim(base + "_QuantizeLinear"))
        self.w.after(value, [node])
        return Quantized(*outputs)

    def _static(self, value: ir.Value, key: Key) -> Quantized:
        params = self.w.params[key]
        node = self.w.quantize(value, params, key.tensor)
        self.w.after(value, [node])
        return Quantized(node.outputs[0], *self.w.scale_and_zero(params, key.tensor))

    def _direct(self, node: ir.Node) -> None:
        """An operator that takes integers and answers in float by itself (QAttention, QEmbedLayerNormalization)."""
        rule = rule_of(node)
        form = rule.forms.get(Style.INTEGER) if rule is not None else None
        if form is None:
            raise TableError(f"The plan wants {node.name!r} in the integer style, which {node.op_type} does not have.")
        operands = fill(form, node, lambda i: self._either(node, i), lambda _: None, None)
        keep = form.attributes
        new = ir.Node(
            form.domain,
            form.op_type,
            operands,
            [a for n, a in node.attributes.items() if keep is None or n in keep],
            outputs=[ir.Value(name=self.w.editor.values.claim((v.name or "") + "_q") if v.name else None, type=v.type, shape=v.shape) for v in node.outputs],
            name=self.w.editor.nodes.claim((node.name or "") + "_quant"),
        )
        if node.graph is None:
            raise TableError(f"Node {node.name!r} belongs to no graph.")
        node.graph.insert_before(node, [new])
        for before, after in zip(node.outputs, new.outputs, strict=True):
            if before.name:
                self.w.editor.take_over(after, before)
        self.w.model.opset_imports.setdefault(form.domain, 1)
        self.w.editor.remove([node])

    def _either(self, node: ir.Node, index: int) -> Quantized:
        value = node.inputs[index]
        key = Key(value.name or "", node.name) if value is not None else None
        if key is None or not isinstance(self.plan.entries.get(key), Constant):
            return self._activation(node)
        params = self.w.params[key]
        self.weights.append(self.w.values[key.tensor])
        return Quantized(self.w.quantized_weight(key), *self.w.scale_and_zero(params, key.tensor))
