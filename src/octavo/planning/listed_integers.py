"""The placement ``listed`` in the styles whose operators take integers: QOperator and IntegerOps."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.granularity import PerTensor
from octavo.core.plan import Constant, Dynamic, Entry, Fixed, Key, Measured, Shared
from octavo.core.qtypes import INT8
from octavo.core.recipe import DynamicScheme, Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import Form, Table, Weight, rule_of
from octavo.planning import weights
from octavo.planning.listed import CLAMPS, FLOAT_INPUT, Listed, is_stored, name

PASSED = ""  # the form of a clamp that goes: what it made is what it read

_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Resize", "ArgMax", "Pad"}
)
_FOLLOWERS = frozenset(
    {"Add", "Mul", "Concat", "LeakyRelu", "Sigmoid", "Softmax", "AveragePool", "GlobalAveragePool", "Where"}
)
_RUNNING = frozenset(
    {"Conv", "MatMul", "Gemm", "Attention", "LSTM", "Gather", "Transpose", "EmbedLayerNormalization"}
)


class ListedIntegers(Listed):
    """Integer operators: a node is quantized where it has such a spelling and its operands are at hand."""

    def decide(self, node: ir.Node) -> None:
        """Place the entries of one node."""
        reason = self._refusal(node)
        if reason is not None:
            self.skip(node, reason)

    def _refusal(self, node: ir.Node) -> str | None:
        """Place the entries of a node, or say why it stays float."""
        dynamic = not self.recipe.is_static
        if dynamic and node.op_type not in _RUNNING:
            return "only weights are quantized ahead of time"
        if not dynamic and node.op_type in CLAMPS:
            return self._clamp(node)
        if node.op_type == "LSTM":
            return self._recurrent(node) if dynamic else "its input is float"
        form = self._form(node)
        if form is None:
            return f"it has no integer spelling in the {self.recipe.style.value} style"
        if form.refuse is not None and (reason := self._spelling_refusal(node, form)):
            return reason
        if node.op_type == "EmbedLayerNormalization":
            return self._tables(node, form)
        if node.op_type == "Gather":
            return self._lookup(node, form)
        if node.op_type in ("Conv", "MatMul", "Gemm", "Attention"):
            return self._product(node, form)
        if node.op_type in _MOVES:
            return self._move(node, form)
        if node.op_type == "Split":
            return self._split(node, form)
        if node.op_type in _FOLLOWERS:
            return self._follower(node, form)
        return "it has no integer spelling"

    def _form(self, node: ir.Node) -> Form | None:
        rule = rule_of(node)
        if rule is None:
            return None
        form = rule.forms.get(self.recipe.style)
        if form is None and node.op_type in ("Gather", "Transpose"):
            form = rule.forms.get(Style.QOPERATOR)
        return form

    def _spelling_refusal(self, node: ir.Node, form: Form) -> str | None:
        if node.op_type == "Resize":
            return None
        return form.refuse(node) if form.refuse is not None else None

    # ---- operands

    def weight_scheme(self, node: ir.Node, index: int, value: ir.Value) -> Scheme:
        """As in all styles; a Conv whose input is quantized at run time has one scale for its weight."""
        scheme = super().weight_scheme(node, index, value)
        if node.op_type != "Conv" or isinstance(scheme.granularity, PerTensor):
            return scheme
        if not self.recipe.is_static:
            return scheme.but(granularity=PerTensor())
        return scheme.but(qtype=INT8, symmetric=True)  # the kernel takes one zero point for all channels

    def operand_scheme(self, scheme: Scheme) -> Scheme:
        """A constant in the type of weights is symmetric where they are."""
        alike = scheme.qtype == self.recipe.weights.qtype
        symmetric = self.recipe.weights.symmetric if alike else scheme.symmetric
        return scheme.but(restricted=False, symmetric=symmetric)

    def activation(self, value: ir.Value | None) -> bool:
        """Quantize a value ahead of time, or while the model runs."""
        scheme = self.recipe.activations
        if not isinstance(scheme, DynamicScheme):
            return super().activation(value)
        if value is None or not self.may(value):
            return False
        if value not in self.level:
            self.level.add(value)
            fixed: Entry = Constant(Scheme(scheme.qtype)) if is_stored(value) else Dynamic(scheme.qtype)
            self.entries[Key(name(value))] = fixed
        return True

    def _product(self, node: ir.Node, form: Form) -> str | None:
        x, w, output = node.inputs[0], node.inputs[1], node.outputs[0]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if not self.may(x) or not self.may(w) or (self.recipe.is_static and not self.may(output)):
            return "a value that it reads or makes is not to be quantized"
        if node.op_type in ("MatMul", "Gemm") and self.listing.constant_weights_only and not is_stored(w):
            return "both factors are computed"
        if node.op_type == "Attention" and not is_stored(w):
            return "its weight is computed, not constant"
        if node.op_type == "Gemm" and (reason := self._gemm(node, w)):
            return reason
        if bias is not None and self.recipe.is_static and node.op_type != "Attention" and not is_stored(bias):
            return "its bias is computed, and its integer kernel takes a constant one"
        if not self._takes(form, node, w):
            return f"{form.op_type} has no kernel for these types"
        if node.op_type == "MatMul":
            self.weight(node, 0)
        else:
            self.activation(x)
        self.weight(node, 1)
        self.take(node, form.op_type)
        if self.recipe.is_static:
            self.bias(node)
            self.activation(output)
        return None

    def _gemm(self, node: ir.Node, w: ir.Value | None) -> str | None:
        rule = rule_of(node)
        if rule is not None and (reason := rule.refusal(node)):
            return reason
        if self.recipe.is_static:
            return None
        if query.attribute(node, "transA", 0) or query.attribute(node, "alpha", 1.0) != 1.0:
            return "transA or alpha keeps it from being a MatMul"
        return None if is_stored(w) else "both factors are computed"

    def _takes(self, form: Form, node: ir.Node, w: ir.Value | None) -> bool:
        act = self.recipe.activations
        if act is None or not form.pairs:
            return True
        kind = self.recipe.weights.qtype if is_stored(w) else act.qtype
        return form.takes(act.qtype, kind)

    def _follower(self, node: ir.Node, form: Form) -> str | None:
        rule = rule_of(node)
        read = [v for i, v in enumerate(node.inputs) if v is not None and (node.op_type != "Where" or i)]
        if rule is not None and (reason := rule.refusal(node)):
            return reason
        if node.op_type == "GlobalAveragePool" and read[0] not in self.level:
            return FLOAT_INPUT
        if (
            node.op_type == "Where"
            and not self.listing.move_anything
            and not all(v in self.level for v in read)
        ):
            return FLOAT_INPUT
        if not all(self.may(v) for v in (*read, node.outputs[0])):
            return "a value that it reads or makes is not to be quantized"
        for value in read:
            self.activation(value)
        self.activation(node.outputs[0])
        if node.op_type == "Softmax":
            self._softmax(node.outputs[0])
        self.take(node, form.op_type)
        return None

    def _softmax(self, output: ir.Value) -> None:
        """The integer kernel of Softmax has 256 steps from zero on, whatever calibration saw."""
        scheme = self.recipe.activations
        if isinstance(scheme, Scheme) and name(output) not in self.named:
            self.entries[Key(name(output))] = Fixed(scheme, (1.0 / 256.0,), (scheme.qtype.qmin,))

    # ---- moves

    def _move(self, node: ir.Node, form: Form) -> str | None:
        first = node.inputs[0]
        if first not in self.level:
            return FLOAT_INPUT
        if isinstance(self.entries.get(Key(name(first))), Dynamic):
            return FLOAT_INPUT
        if node.op_type == "Pad":
            fill = node.inputs[2] if len(node.inputs) > 2 else None
            if fill is not None and not is_stored(fill):
                return "its fill value is computed"
            if fill is not None:
                self.entries[Key(name(fill), node.name)] = Shared(name(first))
        return self._moved(node, form)

    def _split(self, node: ir.Node, form: Form) -> str | None:
        if not self.activation(node.inputs[0]):
            return FLOAT_INPUT
        return self._moved(node, form)

    def _lookup(self, node: ir.Node, form: Form) -> str | None:
        first = node.inputs[0]
        if not is_stored(first) or not self.activation(first):
            return "its table is computed"
        return self._moved(node, form)

    def _moved(self, node: ir.Node, form: Form) -> str | None:
        if any(query.is_float(v) and not self.may(v) for v in node.outputs):
            return "a value that it makes is not to be quantized"
        for value in node.outputs:
            if self.may(value):
                self.level.add(value)
                self.entries[Key(name(value))] = Shared(name(node.inputs[0]))
        self.take(node, form.op_type)
        return None

    def _clamp(self, node: ir.Node) -> str | None:
        """A clamp goes where what it reads was made for it alone, and so has the range of what it makes."""
        first, output = node.inputs[0], node.outputs[0]
        if first is None or first not in self.level:
            return FLOAT_INPUT
        if not self.holds(node) or not isinstance(self.entries.get(Key(name(first))), Measured):
            return "the quantized range of its input does not do its work"
        self.level.add(output)
        self.entries[Key(name(output))] = Shared(name(first))
        self.take(node, PASSED)
        return None

    # ---- weights alone

    def _tables(self, node: ir.Node, form: Form) -> str | None:
        rule = rule_of(node)
        if rule is None or (reason := rule.refusal(node)):
            return reason if rule is not None else "no rule for this operator"
        for index, value in enumerate(node.inputs):
            if value is not None and isinstance(rule.role(index), Table):
                self.activation(value)
        self.take(node, form.op_type)
        return None

    def _recurrent(self, node: ir.Node) -> str | None:
        rule = rule_of(node)
        if rule is None or (reason := rule.refusal(node)):
            return reason if rule is not None else "no rule for this operator"
        for index, value in enumerate(node.inputs):
            if value is not None and isinstance(rule.role(index), Weight):
                signed = self.recipe.but(weights=self.recipe.weights.but(qtype=INT8, symmetric=True))
                scheme = weights.recurrent_scheme(value, signed, fused=True)
                self.entries[Key(name(value), node.name)] = Constant(scheme)
        self.take(node, rule.forms[self.recipe.style].op_type)
        return None


__all__ = ["PASSED", "ListedIntegers"]
