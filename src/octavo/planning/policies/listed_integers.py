"""The policy of the placement ``listed`` in the styles with integer operators: QOperator and IntegerOps."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.granularity import PerTensor
from octavo.core.plan import Constant, Dynamic, Fixed, Key, Measured, Shared
from octavo.core.qtypes import INT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.ops import REMOVED, Kind, Lowering, OpRule, Table, Weight, rule_of
from octavo.ops.listed import DYNAMIC_MOVES, NEED_INPUT, PAIRS, STATIC_MOVES, Treatment
from octavo.planning import weights
from octavo.planning.policies.listed import ListedPolicy, is_stored
from octavo.planning.refusals import FLOAT_INPUT, NO_RULE, NOT_CONSTANT, kernel_refusal, no_lowering
from octavo.planning.state import name_of

_UNUSABLE = "a value that it reads or makes has to stay float"
_COMPUTED = "both inputs are activations"


class ListedIntegers(ListedPolicy):
    """Integer operators: a node is quantized where it has one and its operands are quantized."""

    def decide(self, node: ir.Node) -> str | None:
        """Place the entries of one node, or return the reason why it stays float."""
        rule, static = rule_of(node), self.recipe.is_static
        if rule is None:
            return NO_RULE
        weighted = rule.kind in (Kind.LINEAR, Kind.RECURRENT, Kind.LOOKUP)
        if not static and not weighted and node.op_type not in DYNAMIC_MOVES:
            return "only linear layers, tables and recurrent layers are quantized without calibration"
        if rule.kind is Kind.CLAMP:
            return self.clamp(node, rule)
        lowering = self._lowering(rule)
        if lowering is None:
            return no_lowering(self.style)
        moves = rule.kind is Kind.DATA_MOVEMENT  # which is done by its own rules, interpolation too
        reason = None if moves else rule.refusal(node) or lowering.refusal(node)
        if reason is not None:
            return reason
        match rule.kind:
            case Kind.LINEAR:
                return self._linear(node, rule, lowering)
            case Kind.ELEMENTWISE:
                return self._elementwise(node, rule, lowering)
            case Kind.LOOKUP:
                return self._lookup(node, rule, lowering)
            case Kind.RECURRENT:
                return self.recurrent(node, rule)
            case Kind.EXPERTS:
                return self.experts(node, rule)
            case Kind.DATA_MOVEMENT:
                return self._move(node, lowering)

    def _lowering(self, rule: OpRule) -> Lowering | None:
        found = rule.lowerings.get(self.style)
        if found is None and rule.op_type in DYNAMIC_MOVES:
            return rule.lowerings.get(Style.QOPERATOR)
        return found

    def weight_scheme(self, node: ir.Node, index: int) -> Scheme:
        """As in all styles; a Conv whose input is quantized at run time has one scale for its weight."""
        scheme = super().weight_scheme(node, index)
        if node.op_type != "Conv" or isinstance(scheme.granularity, PerTensor):
            return scheme
        if not self.recipe.is_static:
            return scheme.but(granularity=PerTensor())
        return scheme.but(qtype=INT8, symmetric=True)  # the kernel takes one zero point for all channels

    def operand_scheme(self, scheme: Scheme) -> Scheme:
        """Return how a constant beside activations is quantized: symmetric where weights of its type are."""
        alike = scheme.qtype == self.recipe.weights.qtype
        symmetric = self.recipe.weights.symmetric if alike else scheme.symmetric
        return scheme.but(restricted=False, symmetric=symmetric)

    # ---- operators that compute

    def _linear(self, node: ir.Node, rule: OpRule, lowering: Lowering) -> str | None:
        x, w, output, static = node.inputs[0], node.inputs[1], node.outputs[0], self.recipe.is_static
        if not self.may(x, w, *([output] if static else [])):
            return _UNUSABLE
        reason = self._operands(node, rule, is_stored(w))
        kinds = self.recipe.activations, self.recipe.weights
        if reason is None and kinds[0] is not None:
            weight = kinds[1].qtype if is_stored(w) else kinds[0].qtype
            reason = kernel_refusal(lowering, kinds[0].qtype, weight)
        if reason is not None:
            return reason
        if PAIRS.get(node.op_type) is Treatment.PRODUCT:
            self.weight(node, 0)
        else:
            self.activation(x)
        self.weight(node, 1)
        self.state.take(node, lowering)
        if static:
            self.bias(node)
            self.activation(output)
        return None

    def _operands(self, node: ir.Node, rule: OpRule, constant: bool) -> str | None:
        """Return why the operands of a linear operator do not suit its integer operator."""
        static, bias = self.recipe.is_static, query.operand(node, 2)
        if not constant and rule.is_matrix_product:
            if self.listing.constant_weights_only or (rule.has_bias and not static):
                return _COMPUTED
        elif not constant and not rule.has_bias:
            return NOT_CONSTANT
        if static and rule.has_bias and bias is not None and not is_stored(bias):
            return "its bias is not constant, as its integer kernel needs it"
        turned = query.attribute(node, "transA", 0) or query.attribute(node, "alpha", 1.0) != 1.0
        if not static and rule.is_matrix_product and rule.has_bias and turned:
            return "transA or alpha keeps it from being a MatMul"
        return None

    def _elementwise(self, node: ir.Node, rule: OpRule, lowering: Lowering) -> str | None:
        chooses = PAIRS.get(node.op_type) is Treatment.CHOICE
        read = [v for v in node.inputs[1 if chooses else 0 :] if v is not None]
        needed = node.op_type in NEED_INPUT or (chooses and not self.listing.move_anything)
        if needed and not all(self.state.is_quantized(v) for v in read):
            return FLOAT_INPUT
        if not self.may(*read, node.outputs[0]):
            return _UNUSABLE
        for value in (*read, node.outputs[0]):
            self.activation(value)
        self._built_in(node.outputs[0], lowering)
        self.state.take(node, lowering)
        return None

    def _built_in(self, output: ir.Value, lowering: Lowering) -> None:
        """Give a result the scale that is built into its kernel, whatever calibration saw."""
        scheme = self.recipe.activations
        if lowering.output_scale is None or not isinstance(scheme, Scheme):
            return
        if name_of(output) not in self.overridden:
            self.state.place(output, Fixed(scheme, (lowering.output_scale,), (scheme.qtype.qmin,)))

    # ---- values that are moved

    def _move(self, node: ir.Node, lowering: Lowering) -> str | None:
        first = node.inputs[0]
        if node.op_type not in STATIC_MOVES:
            return no_lowering(self.style)
        if PAIRS.get(node.op_type) is Treatment.SPLIT:
            return self._moved(node, lowering) if self.activation(first) else FLOAT_INPUT
        if not self.state.is_quantized(first):
            return FLOAT_INPUT
        if isinstance(self.state.entries[Key(name_of(first))], Dynamic):
            return FLOAT_INPUT
        if PAIRS.get(node.op_type) is Treatment.PAD and len(node.inputs) > 2 and node.inputs[2] is not None:
            if not self.may(node.inputs[2]):
                return _UNUSABLE
            self.state.place(node.inputs[2], Shared(name_of(first)), node)
        return self._moved(node, lowering)

    def _lookup(self, node: ir.Node, rule: OpRule, lowering: Lowering) -> str | None:
        if rule.moves_values:
            if not is_stored(node.inputs[0]) or not self.activation(node.inputs[0]):
                return "its table is not constant"
            return self._moved(node, lowering)
        for value in rule.reads(node, Table):
            self.activation(value)
        self.state.take(node, lowering)
        return None

    def _moved(self, node: ir.Node, lowering: Lowering) -> str | None:
        if any(query.is_float(v) and not self.may(v) for v in node.outputs):
            return _UNUSABLE
        for value in node.outputs:
            if self.may(value):
                self.state.place(value, Shared(name_of(node.inputs[0])))
        self.state.take(node, lowering)
        return None

    def clamp(self, node: ir.Node, rule: OpRule) -> str | None:
        """Remove a clamp where what it reads was made for it alone, and so has the range of what it makes."""
        first = node.inputs[0]
        if first is None or not self.state.is_quantized(first):
            return FLOAT_INPUT
        if not self.can_fuse(node) or not isinstance(self.state.entries[Key(name_of(first))], Measured):
            return "the quantized range of its input does not saturate where it clamps"
        self.state.place(node.outputs[0], Shared(name_of(first)))
        self.state.take(node, REMOVED)
        return None

    def recurrent(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the weights of a recurrent layer, in the signed type that its kernel takes."""
        if self.recipe.is_static:
            return FLOAT_INPUT
        signed = self.recipe.but(weights=self.recipe.weights.but(qtype=INT8, symmetric=True))
        for value in rule.reads(node, Weight):
            self.state.place(value, Constant(weights.recurrent_scheme(value, signed, fused=True)), node)
        self.state.take(node, rule.lowerings[self.style])
        return None
