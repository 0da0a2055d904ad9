"""The policy of the placements ``target`` and ``everywhere``: what pays off on a target, or all that can be.

With ``target`` an operator between linear ones is quantized only if its inputs are integers already and
integers are wanted behind it. A linear operator whose result may stay float is left so, and its consumers
quantize what they read: the entry sits on the edge. With ``everywhere`` each operator that has a rule is
quantized, and entries sit on tensors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Dynamic, Entry, Key, Measured, Shared
from octavo.core.qtypes import UINT8
from octavo.core.recipe import DynamicScheme, Placement, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.graph import meta, query
from octavo.ops import (
    MATMUL_NBITS,
    MATMUL_TO_FLOAT,
    Act,
    Bias,
    Lowering,
    OpRule,
    Out,
    Same,
    Table,
    Weight,
    rule_of,
)
from octavo.planning import (
    barriers,
    biases,
    clamps,
    hazards,
    legality,
    lowerings,
    outliers,
    refusals,
    weights,
)
from octavo.planning.policies.policy import Policy
from octavo.planning.state import State, name_of
from octavo.planning.weights import weight_of
from octavo.targets import Target
from octavo.targets.target import OutlierInputs

_NO_CONSUMER = "no quantized operator consumes its output"


class TargetPolicy(Policy):
    """Quantizes where a target gains by it, or everywhere."""

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.everywhere = recipe.placement is Placement.EVERYWHERE or recipe.op_types is not None
        self.static, self.int32_biases = recipe.is_static, biases.are_int32(recipe)

    def begin(self, state: State) -> None:
        """Look for outliers, and for what no single range can hold."""
        super().begin(state)
        self.outliers = outliers.outlier_layers(state.nodes)
        if self.static:
            state.avoid = state.avoid.and_also(hazards.structural(state.nodes))

    def refusal(self, node: ir.Node) -> str | None:
        """Return why a node can't be quantized, or why the target does not gain by it."""
        rule = rule_of(node)
        if rule is None:
            return refusals.NO_RULE
        unit = meta.unit(node) if self.target.kernels.runs_patterns_whole else None
        if unit is not None:
            return f"part of a {unit.partition(':')[0]}, which the runtime runs as one operator"
        return (
            refusals.unusable(node, rule, self.recipe)
            or refusals.unaccepted(node, rule, self.recipe, self.target)
            or (None if self.everywhere else refusals.unprofitable(node, rule, self.recipe, self.target))
        )

    def survey(self) -> None:
        """Find the values that lead to linear operators that read them quantized."""
        state, floats = self.state, set[str | None](self.state.reasons)
        if state.selection.dynamic_nodes:
            floats.update(node.name for node in state.nodes if self._is_dynamic(node))
        self.leads = _leading_to_linear(state.nodes, floats)

    # ---- linear operators

    def linear(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize input and weight, and the result where the target needs it or all is quantized."""
        reason = self._blocked(node, rule)
        if reason is None and self._is_dynamic(node):
            return self._at_run_time(node, rule)
        whole = self._quantizes_result(node)
        reason = reason or (whole if isinstance(whole, str) else None)
        if reason is None and self._is_idle(node):
            reason = "depthwise Conv between float operators: int8 does not pay off"
        unseen = name_of(node.inputs[0]) in self.state.avoid.unseen
        outlier = node.name in self.outliers and reason is None
        if outlier and self._is_split(node):
            return self._at_run_time(node, rule)
        if (unseen or outlier) and self._in_blocks(node):
            return None
        if unseen and self._weight_alone(node, rule):
            return None
        if reason is not None:
            return reason
        self._layer(node, rule, whole is True)
        return None

    def _layer(self, node: ir.Node, rule: OpRule, whole: bool) -> None:
        """Quantize a linear operator with all that belongs to it."""
        layer = query.linear_layer(node) if not self.everywhere else None
        add = layer.add if layer is not None else None
        if add is not None and self.state.selection.is_excluded(add):
            add = None
        self.state.take(node, self._lowered(rule, whole), add)
        self._reads(node, rule)
        takes_int32 = self.int32_biases and self.style is not Style.QOPERATOR
        if add is not None and layer is not None and layer.bias is not None and takes_int32:
            biases.place(self.state, layer.bias, add, node)
        if whole:
            self._gives(node, rule)

    def _at_run_time(self, node: ir.Node, rule: OpRule) -> str | None:
        """Let a linear layer find the range of its input while the model runs; its result is float."""
        state, split, layer = self.state, self._is_split(node), query.linear_layer(node)
        lowering = MATMUL_TO_FLOAT if split else rule.lowerings[Style.INTEGER]
        state.take(node, lowering, layer.add if layer is not None else None)
        x, w = node.inputs[0], node.inputs[1]
        if x is not None and w is not None:
            scheme = weights.scheme_of(node, rule, 1, self.recipe.but(style=Style.INTEGER), self.target)
            state.place(w, Constant(scheme), node)
            state.place(x, Dynamic(twice=split, by_row=split and outliers.gated(x)), node)
        return None

    def _is_dynamic(self, node: ir.Node) -> bool:
        """Whether a static recipe lets this layer find the range of its input while the model runs."""
        if node.name not in self.state.selection.dynamic_nodes:
            return False
        rule = rule_of(node)
        lowering = rule.lowerings.get(Style.INTEGER) if rule is not None else None
        return (
            self.static
            and self.style is Style.QDQ
            and rule is not None
            and rule.is_matrix_product
            and lowering is not None
            and node.op_type in self.target.placement.dynamic_linear
            and weight_of(node.inputs[1]) is not None
            and lowering.takes(UINT8, self.recipe.weights.qtype)
            and lowering.refusal(node) is None
        )

    def _is_split(self, node: ir.Node) -> bool:
        """Whether a layer whose input has outliers reads it in a high and a low part."""
        return (
            node.name in self.outliers
            and self.target.kernels.outlier_inputs is OutlierInputs.SPLIT
            and not self.everywhere
            and self.style is not Style.QOPERATOR
            and weights.blocks_of(node, self.recipe, self.target) is not None
        )

    def _in_blocks(self, node: ir.Node) -> bool:
        """Scale a layer block by block, which needs no range of its input, where the target can do so."""
        scheme = weights.blocks_of(node, self.recipe, self.target) if not self.everywhere else None
        if scheme is None or node.inputs[1] is None:
            return False
        self.state.take(node, MATMUL_NBITS)
        self.state.place(node.inputs[1], Constant(scheme), node)
        return True

    def _weight_alone(self, node: ir.Node, rule: OpRule) -> bool:
        """Keep the weight of a layer that calibration has not seen in 8 bits, and let it run in float."""
        weight = node.inputs[1]
        if self.style is not Style.QDQ or self.everywhere or weight is None or weight_of(weight) is None:
            return False
        self.state.take(node)
        self.state.place(weight, Constant(weights.scheme_of(node, rule, 1, self.recipe, self.target)), node)
        return True

    def _is_idle(self, node: ir.Node) -> bool:
        """Whether a Conv is cheap, and integers would be made for it and unmade behind it alone."""
        first, reasons = node.inputs[0], self.state.reasons
        if (
            not self.target.placement.convolutions.idle_depthwise_in_float
            or self.everywhere
            or not self.static
        ):
            return False
        if not query.is_depthwise(node) or first is None or self.state.is_quantized(first):
            return False
        given = self._behind_clamp(node.outputs[0], Out()).consumers()
        others = [other for other in (*first.consumers(), *given) if other is not node]
        return bool(given) and all(other.name in reasons for other in others)

    def _quantizes_result(self, node: ir.Node) -> bool | str:
        """Whether a linear operator's result is quantized too; the reason why it can't be where it has to."""
        must = node.op_type in self.target.placement.needs_output
        if not self.static or not (must or self.everywhere):
            return False
        output = node.outputs[0]
        barred = self.state.avoided(output)
        if barred is None or self._behind_clamp(output, Out()) is not output:
            return True
        return barred if must else False

    def _lowered(self, rule: OpRule, whole: bool) -> Lowering | None:
        """Return the integer operator of a linear one in the style of the recipe."""
        lowering = rule.lowerings.get(self.style)
        if lowering is not None and self.style is Style.QOPERATOR and not (whole or lowering.float_output):
            return MATMUL_TO_FLOAT
        return lowering

    # ---- between linear operators

    def elementwise(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize an operator whose inputs are integers already, where a linear one follows."""
        if not self.static:
            return _NEEDS_RANGES
        read = [v for v in rule.reads(node, Act) if query.constant(v) is None]
        if not read:
            return "all its inputs are constant"
        reason = self._blocked(node, rule) or self._avoided_result(node)
        if reason is None and not self.everywhere:
            if not all(self.state.is_quantized(v) for v in read):
                return refusals.FLOAT_INPUT
            reason = self._unread(node)
        if reason is not None:
            return reason
        self.state.take(node, rule.lowerings.get(self.style))
        self._reads(node, rule)
        self._gives(node, rule)
        return None

    def movement(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize data movement and clamps whose input is quantized; moved values keep its parameters."""
        first, lowering = node.inputs[0], rule.lowerings.get(self.style)
        if not self.static:
            return _NEEDS_RANGES
        if first is None or not self.state.is_quantized(first):
            return refusals.FLOAT_INPUT
        reason = (None if self.everywhere else self._unread(node)) or self._avoided_result(node)
        if reason is None and lowering is None and self.style is not Style.QDQ:
            reason = refusals.no_lowering(self.style)
        if reason is not None:
            return reason
        self.state.take(node, lowering)
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if isinstance(result, Same):
                self.state.place(value, Shared(name_of(first)))
            elif isinstance(result, Out):
                self._place(value, result)
        return None

    def _unread(self, node: ir.Node) -> str | None:
        return None if any(v in self.leads for v in node.outputs) else _NO_CONSUMER

    def _avoided_result(self, node: ir.Node) -> str | None:
        return next((reason for v in node.outputs if (reason := self.state.avoided(v))), None)

    # ---- weights alone

    def lookup(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize constant tables; computed rows are moved."""
        tables = weights.tables(node, rule)
        if not tables:
            return self.movement(node, rule)
        reason = self._blocked(node, rule) or weights.table_refusal(node, rule, self.recipe)
        if reason is not None:
            return reason
        for value in tables:
            self.state.place(value, Constant(weights.table_scheme(rule, self.recipe)), node)
        self.state.take(node, None if rule.moves_values else rule.lowerings.get(self.style))
        return None

    def recurrent(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the weights of a recurrent layer."""
        lowering, kind = rule.lowerings.get(self.style), self.recipe.weights.qtype
        if kind.bits != 8 or kind.is_float:
            return "its weights take 8-bit integers only"
        if lowering is None and self.style is not Style.QDQ:
            return refusals.no_lowering(self.style)
        reason = self._blocked(node, rule)
        if reason is not None:
            return reason
        for value in rule.reads(node, Weight):
            scheme = weights.recurrent_scheme(value, self.recipe, fused=lowering is not None)
            self.state.place(value, Constant(scheme), node)
        self.state.take(node, lowering)
        return None

    # ---- entries

    def _blocked(self, node: ir.Node, rule: OpRule) -> str | None:
        """Return why a value that a node would read quantized has to stay float."""
        if not self.state.avoid.tensors:
            return None
        roles: tuple[type, ...] = (Act, Weight, Table)
        if self.style is Style.QOPERATOR:
            roles += (Bias,)  # its integer operator takes no float bias
        return next((why for v in rule.reads(node, *roles) if (why := self.state.avoided(v))), None)

    def _reads(self, node: ir.Node, rule: OpRule) -> None:
        """Place the entries of what a node reads: inputs, weights, and the bias that depends on both."""
        for i, value in enumerate(node.inputs):
            role = rule.role(i)
            if value is None:
                continue
            if isinstance(role, Weight) and weight_of(value) is not None:
                scheme = weights.scheme_of(node, rule, i, self.recipe, self.target)
                self.state.place(value, Constant(scheme), node)
            elif isinstance(role, Act | Weight):
                self._activation(node, value)
            elif isinstance(role, Bias) and self.int32_biases:
                biases.place(self.state, value, node, node)

    def _activation(self, node: ir.Node, value: ir.Value) -> None:
        """Let a node read a value quantized: as it is for all, or only on this edge."""
        scheme = self.recipe.activations
        if scheme is None or self.state.is_quantized(value):
            return
        if isinstance(scheme, DynamicScheme):
            if query.constant(value) is None:
                self.state.place(value, Dynamic(scheme.qtype), node)
        elif query.constant(value) is not None:
            self.state.place(value, Constant(scheme), node)  # beside an activation, in its type
        else:
            self.state.place(value, Measured(scheme), None if self.everywhere else node)

    def _gives(self, node: ir.Node, rule: OpRule) -> None:
        """Quantize the results of a node for all consumers."""
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if isinstance(result, Out) and query.is_float(value):
                self._place(value, result)

    def _place(self, value: ir.Value, result: Out) -> None:
        """Quantize a result by its own range, behind a clamp that this makes superfluous."""
        output = self._behind_clamp(value, result)
        clamp = output.producer()
        if output is not value and clamp is not None:
            clamps.fuse(clamp, self.state)
        self.state.place(output, self._entry(result))

    def _behind_clamp(self, value: ir.Value, result: Out) -> ir.Value:
        """Return what the clamp behind a value makes, where that is fused, or the value itself."""
        clamp = clamps.behind(value, self._entry(result), self.state, self.recipe)
        return clamp.outputs[0] if clamp is not None else value

    def _entry(self, result: Out) -> Entry:
        """Return how a result is quantized: by a range that is measured, or one that is known."""
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme):
            return Dynamic()
        if result.low is None or result.high is None or scheme.qtype.is_float:
            return Measured(scheme)
        return Bounded(scheme, result.low, result.high)

    # ---- after the walk

    def settle(self, entries: Mapping[Key, Entry]) -> None:
        """Check all entries against the target, and lower nodes to operators that it computes faster."""
        state = self.state
        legality.check(entries, state.nodes, state.quantized, self.recipe, self.target)
        if self.static and self.style is Style.QDQ:
            faster = lowerings.faster(state.nodes, state.quantized, entries, self.recipe, self.target)
            state.quantized.update(faster)

    def barriers(self, entries: Mapping[Key, Entry]) -> tuple[str, ...]:
        """Return the layers that the runtime would round, and operators that its fusions make slower."""
        state, found = self.state, tuple[str, ...]()
        if not state.quantized:
            return ()
        if self.static and self.style is Style.QDQ:
            found = barriers.find(state.nodes, state.quantized, entries, self.target)
        used = {*state.quantized, *state.bias_adds, *found}
        free = [n for n in state.nodes if n.name not in used and not state.selection.is_excluded(n)]
        return (*found, *barriers.slow_fusions(free, entries, self.target, self.recipe))


_NEEDS_RANGES = "only linear layers, tables and recurrent layers are quantized without calibration"


def _leading_to_linear(nodes: Sequence[ir.Node], floats: Container[str | None]) -> set[ir.Value]:
    """Return the values that linear operators read, directly or through what can be quantized."""
    found: set[ir.Value] = set()
    for node in reversed(nodes):
        rule = rule_of(node) if node.name not in floats else None
        if rule is None or not (rule.is_linear or any(v in found for v in node.outputs)):
            continue
        found.update(rule.reads(node, Act, Table))
        if rule.is_linear and node.inputs[1] is not None:
            found.add(node.inputs[1])
    return found
