"""Recipe × op table × target → Plan.

Nodes are walked once backwards (does a value lead to a product that will read it quantized?) and once
forwards (is a node's input quantized already?). With the placement ``target`` an operator between
products is quantized only if both hold: its inputs are integers already, and integers are wanted behind
it. A product that the runtime can leave in float (linear layers) is left so, and its readers quantize what
they read: the entry sits on the edge. With ``everywhere`` each operator that has a rule is quantized, and
entries sit on tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from octavo.core.plan import (
    Constant,
    Dynamic,
    Entry,
    Key,
    Plan,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.recipe import Placement, Recipe, Style
from octavo.model import query
from octavo.ops import (
    BLOCK_PRODUCT,
    MATMUL_TO_FLOAT,
    Kind,
    OpRule,
    Out,
    Same,
    Weight,
    rule_of,
)
from octavo.planning import guards, hazards, legal, outliers, overrides, spellings, weights
from octavo.planning.accepted import accepts, fitted
from octavo.planning.candidates import (
    Avoid,
    Question,
    at_run_time,
    form_of,
    is_float_work,
    leading_to_products,
    refusal,
)
from octavo.planning.draft import Draft, name_of
from octavo.planning.listed_integers import ListedIntegers
from octavo.planning.listed_pairs import ListedPairs
from octavo.planning.select import ORIGINAL, Selection
from octavo.planning.sources import weight_of
from octavo.planning.stored import with_stored
from octavo.targets import Target


def build(model: ir.Model, recipe: Recipe, target: Target, avoid: Avoid | None = None) -> Plan:
    """The plan for a prepared model. Nothing is written; the model is not changed."""
    accepts(recipe, target)
    recipe = fitted(recipe, target)
    nodes = list(query.nodes(model))
    around = (avoid or Avoid()).and_also(Avoid(tensors=overrides.kept_float(recipe, model)))
    selection = Selection(nodes, recipe, model.meta.get(ORIGINAL, {}))
    question = Question(recipe, target, selection, around)
    if recipe.placement is Placement.LISTED:
        kind = ListedPairs if recipe.style is Style.QDQ else ListedIntegers
        return with_stored(kind(model, nodes, question).plan(), nodes, question)
    if recipe.is_static:
        question = replace(question, avoid=around.and_also(hazards.structural(nodes)))
    return with_stored(_Builder(model, nodes, question).plan(), nodes, question)


class _Builder(Draft):
    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], question: Question) -> None:
        super().__init__(model, nodes, question)
        self.part_of_layer: set[str] = set()  # Adds that belong to a linear layer
        self.loud = outliers.loud_layers(nodes)

    def plan(self) -> Plan:
        for node in self.nodes:
            reason = refusal(node, self.q)
            if reason is not None:
                self.reasons[node.name or ""] = reason
        running = {n.name or "" for n in self.nodes if n.name not in self.reasons and at_run_time(n, self.q)}
        leads = leading_to_products(self.nodes, {*self.reasons, *running})
        for node in self.nodes:
            if (
                node.name not in self.reasons
                and node.name not in self.absorbed
                and node.name not in self.part_of_layer
            ):
                self._decide(node, leads)
        entries = overrides.apply(self.entries, self.recipe, self.model)
        legal.check(entries, self.nodes, self.quantized, self.recipe, self.q.target)
        self.quantized |= dict(
            spellings.respelled(self.nodes, self.quantized, entries, self.recipe, self.q.target)
        )
        skipped = tuple(
            Skipped(node.name or "", node.op_type, self.reasons[node.name or ""])
            for node in self.nodes
            if node.name in self.reasons and node.name not in self.part_of_layer and is_float_work(node)
        )
        return Plan(
            style=self.recipe.style,
            entries=entries,
            nodes=self.quantized,
            absorbed=self.absorbed,
            skipped=skipped,
            guards=self._guards(entries),
        )

    def _guards(self, entries: dict[Key, Entry]) -> tuple[str, ...]:
        if not self.quantized:
            return ()
        held = self.static and self.recipe.style is Style.QDQ
        found = guards.find(self.nodes, self.quantized, self.level, entries, self.q.target) if held else ()
        biases = {q.bias_add for q in self.quantized.values() if q.bias_add is not None}
        alone = {*self.quantized, *biases, *found}
        free = [node for node in self.nodes if not self.is_excluded(node)]
        return (*found, *guards.apart(free, alone, self.q.target))

    # ---- one node

    def _decide(self, node: ir.Node, leads: set[ir.Value]) -> None:
        rule = rule_of(node)
        if rule is None:
            return
        match rule.kind:
            case Kind.PRODUCT:
                self._product(node, rule)
            case Kind.RECURRENT:
                self._recurrent(node, rule)
            case Kind.LOOKUP if weights.tables(node, rule):
                self._lookup(node, rule)
            case _ if not self.static:
                self.reasons[node.name or ""] = "only weights are quantized ahead of time"
            case Kind.FOLLOWER:
                self._follower(node, rule, leads)
            case Kind.MOVE | Kind.CLAMP | Kind.LOOKUP:
                self._passenger(node, rule, leads)

    def _product(self, node: ir.Node, rule: OpRule) -> None:
        if at_run_time(node, self.q) and self.barred(node, rule) is None:
            self._running(node, rule)
            return
        output = self._takes_output(node, rule)
        reason = self.barred(node, rule) or (output if isinstance(output, str) else None)
        if reason is None and self._is_idle(node):
            reason = "depthwise between float operators: it gains nothing"
        unseen = name_of(node.inputs[0]) in self.q.avoid.unseen if node.inputs[0] is not None else False
        loud = node.name in self.loud and reason is None
        if loud and self._takes_passes(node):
            self._running(node, rule)
            return
        if not self.q.everywhere and (unseen or loud):
            blocks = weights.blocks_of(node, self.recipe, self.q.target)
            if blocks is not None and node.inputs[1] is not None:
                self.quantized[node.name or ""] = Quantized(node.op_type, BLOCK_PRODUCT.op_type)
                self.entries[Key(name_of(node.inputs[1]), node.name)] = Constant(blocks)
                return
        if unseen and self._weight_alone(node, rule):
            return
        if reason is not None:
            self.skip(node, reason)
            return
        layer = query.linear_layer(node) if node.op_type == "MatMul" and not self.q.everywhere else None
        add = layer.add if layer is not None else None
        if add is not None and self.is_excluded(add):
            add = None
        spelled = self._spelling(node, rule, output is True)
        self.quantized[node.name or ""] = Quantized(
            node.op_type, spelled, bias_add=add.name if add is not None else None
        )
        if add is not None:
            self.part_of_layer.add(add.name or "")
            self.reasons.pop(add.name or "", None)
        for i, value in enumerate(node.inputs):
            if value is not None:
                self.reads(node, rule, i, value)
        if (
            add is not None
            and layer is not None
            and layer.bias is not None
            and weights.has_int32_bias(self.recipe)
        ):
            self.bias(add, layer.bias, node)
        if output is True:
            self.gives(node, rule)

    def _running(self, node: ir.Node, rule: OpRule) -> None:
        """A linear layer that finds the range of its input while the model runs; its result is float."""
        loud, layer = self._takes_passes(node), query.linear_layer(node)
        form = MATMUL_TO_FLOAT if loud else rule.forms[Style.INTEGER]
        add = layer.add if layer is not None and node.op_type == "MatMul" else None
        self.quantized[node.name or ""] = Quantized(
            node.op_type, form.op_type, bias_add=add.name if add is not None else None
        )
        if add is not None:
            self.part_of_layer.add(add.name or "")
            self.reasons.pop(add.name or "", None)
        x, w, role = node.inputs[0], node.inputs[1], rule.role(1)
        if x is not None and w is not None and isinstance(role, Weight):
            scheme = weights.scheme_of(
                node, rule, role, w, self.recipe.but(style=Style.INTEGER), self.q.target
            )
            self.entries[Key(name_of(w), node.name)] = Constant(scheme)
            by_row = loud and outliers.gated(x)
            self.entries[Key(name_of(x), node.name)] = Dynamic(twice=loud, by_row=by_row)

    def _takes_passes(self, node: ir.Node) -> bool:
        """Whether a layer with a loud input reads it in two passes of 8 bits."""
        return (
            node.name in self.loud
            and self.q.target.two_passes
            and not self.q.everywhere
            and self.recipe.style is not Style.QOPERATOR
            and weights.blocks_of(node, self.recipe, self.q.target) is not None
        )

    def _weight_alone(self, node: ir.Node, rule: OpRule) -> bool:
        """Store the weight of a layer that calibration has not seen in 8 bits, and let it run in float."""
        weight, role = node.inputs[1], rule.role(1)
        if (
            self.recipe.style is not Style.QDQ
            or self.q.everywhere
            or weight is None
            or weight_of(weight) is None
        ):
            return False
        if not isinstance(role, Weight):
            return False
        scheme = weights.scheme_of(node, rule, role, weight, self.recipe, self.q.target)
        self.quantized[node.name or ""] = Quantized(node.op_type, node.op_type)
        self.entries[Key(name_of(weight), node.name)] = Constant(scheme)
        return True

    def _is_idle(self, node: ir.Node) -> bool:
        """Whether a Conv has few products, and integers would be made for it and unmade behind it alone."""
        if not self.q.target.idle_depthwise or self.q.everywhere or not self.static:
            return False
        if not query.is_depthwise(node) or node.inputs[0] is None or node.inputs[0] in self.level:
            return False
        read, given = node.inputs[0].consumers(), self.clamped(node.outputs[0]).consumers()
        others = [other for other in (*read, *given) if other is not node]
        return bool(given) and all(other.name in self.reasons for other in others)

    def _takes_output(self, node: ir.Node, rule: OpRule) -> bool | str:
        """Whether a product's result is quantized as well; the reason why it can't be where it has to."""
        if not self.static:
            return False
        must = node.op_type in self.q.target.needs_output
        if not must and not self.q.everywhere:
            return False
        output = node.outputs[0]
        barred = self.avoided(output) if self.avoided(self.clamped(output)) else None
        if barred is None:
            return True
        return barred if must else False

    def _spelling(self, node: ir.Node, rule: OpRule, with_output: bool) -> str:
        """The operator that a product becomes."""
        form = form_of(rule, self.q)
        if form is None:
            return node.op_type
        if self.recipe.style is Style.QOPERATOR and not with_output and not form.float_output:
            return MATMUL_TO_FLOAT.op_type
        return form.op_type

    # ---- between products

    def _follower(self, node: ir.Node, rule: OpRule, leads: set[ir.Value]) -> None:
        acts = self.activations_of(node, rule)
        if not acts:
            self.skip(node, "all its inputs are constant")
            return
        bad = self.barred(node, rule) or next(
            (self.avoided(v) for v in node.outputs if self.avoided(v)), None
        )
        if bad is not None:
            self.skip(node, bad)
            return
        if not self.q.everywhere:
            if not all(v in self.level for v in acts):
                self.skip(node, "its input is float")
                return
            if not any(v in leads for v in node.outputs):
                self.skip(node, "no quantized operator reads its result")
                return
        form = form_of(rule, self.q)
        self.quantized[node.name or ""] = Quantized(
            node.op_type, form.op_type if form is not None else node.op_type
        )
        for i, value in enumerate(node.inputs):
            if value is not None:
                self.reads(node, rule, i, value)
        self.gives(node, rule)

    def _passenger(self, node: ir.Node, rule: OpRule, leads: set[ir.Value]) -> None:
        """Data movement and clamps: quantized when their input is, with its parameters where values move."""
        first = node.inputs[0]
        if first is None or first not in self.level:
            self.skip(node, "its input is float")
            return
        if not self.q.everywhere and not any(v in leads for v in node.outputs):
            self.skip(node, "no quantized operator reads its result")
            return
        if any(self.avoided(v) for v in node.outputs):
            self.skip(node, next(self.avoided(v) or "" for v in node.outputs if self.avoided(v)))
            return
        form = form_of(rule, self.q)
        if self.recipe.style is not Style.QDQ and form is None:
            self.skip(node, f"it has no integer spelling in the {self.recipe.style.value} style")
            return
        self.quantized[node.name or ""] = Quantized(
            node.op_type, form.op_type if form is not None else node.op_type
        )
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if isinstance(result, Same | Out) and rule.kind is Kind.LOOKUP:
                result = Same()
            if isinstance(result, Same):
                self.place(value, Shared(name_of(first)))
            elif isinstance(result, Out):
                self.place(self.behind_clamp(value), self.entry_of(result))

    # ---- weights alone

    def _lookup(self, node: ir.Node, rule: OpRule) -> None:
        form = form_of(rule, self.q)
        found = weights.tables(node, rule)
        reason = self.barred(node, rule) or weights.table_refusal(node, found, self.recipe)
        if reason is not None:
            self.skip(node, reason)
            return
        for value in found:
            self.entries[Key(name_of(value), node.name)] = Constant(weights.table_scheme(node, self.recipe))
        spelled = form.op_type if node.op_type != "Gather" and form is not None else node.op_type
        self.quantized[node.name or ""] = Quantized(node.op_type, spelled)

    def _recurrent(self, node: ir.Node, rule: OpRule) -> None:
        form = form_of(rule, self.q)
        reason = self.barred(node, rule)
        if self.recipe.weights.qtype.bits != 8 or self.recipe.weights.qtype.is_float:
            reason = "its weights would need 8 bits"
        elif form is None and self.recipe.style is not Style.QDQ:
            reason = f"it has no integer spelling in the {self.recipe.style.value} style"
        if reason is not None:
            self.skip(node, reason)
            return
        for i, value in enumerate(node.inputs):
            if value is not None and isinstance(rule.role(i), Weight):
                scheme = weights.recurrent_scheme(value, self.recipe, fused=form is not None)
                self.entries[Key(name_of(value), node.name)] = Constant(scheme)
        self.quantized[node.name or ""] = Quantized(
            node.op_type, form.op_type if form is not None else node.op_type
        )
