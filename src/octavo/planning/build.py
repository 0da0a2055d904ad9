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

import onnx_ir as ir

from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Key, Measured, Plan, Quantized, Shared, Skipped
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import Act, Bias, Kind, OpRule, Out, Same, Table, Weight, axis_of, rule_of
from octavo.ops.hooks import clamp_bounds
from octavo.planning import hazards, overrides
from octavo.planning.candidates import Avoid, Question, accepts, form_of, is_float_work, refusal, weight_of
from octavo.planning.select import Selection
from octavo.targets import Target


def build(model: ir.Model, recipe: Recipe, target: Target, avoid: Avoid | None = None) -> Plan:
    """The plan for a prepared model. Nothing is written; the model is not changed."""
    accepts(recipe, target)
    nodes = list(query.nodes(model))
    question = Question(recipe, target, Selection(nodes, recipe), avoid or Avoid())
    return _Builder(model, nodes, question).plan()


class _Builder:
    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], question: Question) -> None:
        self.model = model
        self.nodes = nodes
        self.q = question
        self.recipe = question.recipe
        self.entries: dict[Key, Entry] = {}
        self.quantized: dict[str, Quantized] = {}
        self.absorbed: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.level: set[ir.Value] = set()  # values that are quantized for every reader
        self.part_of_layer: set[str] = set()  # Adds that belong to a linear layer
        self.static = recipe_is_static(self.recipe)

    def plan(self) -> Plan:
        for node in self.nodes:
            reason = refusal(node, self.q) or self._hazard(node)
            if reason is not None:
                self.reasons[node.name or ""] = reason
        leads = self._leads()
        for node in self.nodes:
            if node.name not in self.reasons and node.name not in self.absorbed and node.name not in self.part_of_layer:
                self._decide(node, leads)
        entries = overrides.apply(self.entries, self.recipe, self.model)
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
        """Float layers that read and feed quantized values: the runtime would round their weights per tensor."""
        if self.recipe.style is not Style.QDQ or not self.static:
            return ()
        touched = {key.tensor for key in entries}
        found = []
        for node in self.nodes:
            if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or node.name in self.quantized:
                continue
            behind = [node.outputs[0], *(v for r in node.outputs[0].consumers() if r.op_type in ("Relu", "Clip") for v in r.outputs)]
            if node.inputs[0] in self.level and any(_name(v) in touched for v in behind):
                found.append(node.name or "")
        return tuple(found)

    def _hazard(self, node: ir.Node) -> str | None:
        return hazards.structural(node) if self.static else None

    # ---- what leads to a product

    def _leads(self) -> set[ir.Value]:
        """Values that some product reads, directly or through operators that can be quantized."""
        found: set[ir.Value] = set()
        for node in reversed(self.nodes):
            if node.name in self.reasons:
                continue
            rule = rule_of(node)
            if rule is None:
                continue
            wanted = rule.kind is Kind.PRODUCT or any(v in found for v in node.outputs)
            if wanted:
                found.update(v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Act | Table))
                if rule.kind is Kind.PRODUCT and node.inputs[1] is not None:
                    found.add(node.inputs[1])
        return found

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
            case Kind.LOOKUP if self._is_table(node, rule):
                self._lookup(node, rule)
            case _ if not self.static:
                self.reasons[node.name or ""] = "only weights are quantized ahead of time"
            case Kind.FOLLOWER:
                self._follower(node, rule, leads)
            case Kind.MOVE | Kind.CLAMP | Kind.LOOKUP:
                self._passenger(node, rule, leads)

    def _product(self, node: ir.Node, rule: OpRule) -> None:
        if self.static and any(self._avoided(v) for v in self._acts(node, rule)):
            self._skip(node, next(self._avoided(v) or "" for v in self._acts(node, rule) if self._avoided(v)))
            return
        layer = query.linear_layer(node) if node.op_type == "MatMul" and not self.q.everywhere else None
        add = layer.add if layer is not None else None
        form = form_of(rule, self.q)
        needs_output = self.q.everywhere or node.op_type in self.q.target.needs_output
        spelled = form.op_type if form is not None else node.op_type
        if self.recipe.style is Style.QOPERATOR and form is not None and not needs_output and not form.float_output:
            spelled = "MatMulIntegerToFloat"  # the one product that takes integers and answers in float
        if add is not None and add.name in self.reasons and "excluded" in self.reasons[add.name or ""]:
            add = None
        self.quantized[node.name or ""] = Quantized(node.op_type, spelled, bias_add=add.name if add is not None else None)
        if add is not None:
            self.part_of_layer.add(add.name or "")
            self.reasons.pop(add.name or "", None)
        for i, value in enumerate(node.inputs):
            if value is not None:
                self._input(node, rule, i, value)
        if add is not None and layer is not None and layer.bias is not None and self._quantizes_bias():
            self._bias(add, layer.bias, node)
        if self.static and needs_output:
            self._output(node, rule)

    def _input(self, node: ir.Node, rule: OpRule, index: int, value: ir.Value) -> None:
        role = rule.role(index)
        if isinstance(role, Weight) and weight_of(value) is not None:
            self._weight(node, role, value)
        elif isinstance(role, Act | Weight):
            self._activation(node, value)
        elif isinstance(role, Bias) and query.constant(value) is not None and self._quantizes_bias():
            self._bias(node, value, node)

    def _activation(self, node: ir.Node, value: ir.Value) -> None:
        """The node reads this value quantized: as it is for all, or only on this edge."""
        if self.recipe.activations is None or value in self.level:
            return
        if query.constant(value) is not None:
            self._constant_operand(node, value)
        elif isinstance(self.recipe.activations, DynamicScheme):
            self.entries[Key(_name(value), node.name)] = Dynamic(self.recipe.activations.qtype)
        elif self.q.everywhere:
            self.level.add(value)
            self.entries[Key(_name(value))] = Measured(self.recipe.activations)
        else:
            self.entries[Key(_name(value), node.name)] = Measured(self.recipe.activations)

    def _constant_operand(self, node: ir.Node, value: ir.Value) -> None:
        """A constant beside an activation (Add, Mul, Concat) has the activation's type."""
        scheme = self.recipe.activations
        if isinstance(scheme, Scheme):
            self.entries[Key(_name(value), node.name)] = Constant(scheme)

    def _weight(self, node: ir.Node, role: Weight, value: ir.Value) -> None:
        scheme = self.recipe.weights
        rule_axis, sums = axis_of(role.axis, node), axis_of(role.sums, node)
        match scheme.granularity:
            case PerChannel(None):
                form = rule_of(node).forms.get(self.recipe.style) if rule_of(node) else None  # type: ignore[union-attr]
                per_channel = rule_axis is not None and (form is None or form.per_channel)
                scheme = scheme.but(granularity=PerChannel(rule_axis) if per_channel else PerTensor())
            case PerBlock(size, None):
                dims = query.shape(value) or ()
                blocked = sums is not None and len(dims) == 2
                scheme = scheme.but(granularity=PerBlock(size, sums) if blocked else _or_channel(rule_axis))
            case _:
                pass
        self.entries[Key(_name(value), node.name)] = Constant(scheme)

    def _quantizes_bias(self) -> bool:
        activations = self.recipe.activations
        return (
            self.recipe.quantize_bias
            and isinstance(activations, Scheme)
            and not activations.qtype.is_float
            and self.recipe.style is not Style.INTEGER
            and not isinstance(self.recipe.weights.granularity, PerBlock)
        )

    def _bias(self, reader: ir.Node, bias: ir.Value, product: ir.Node) -> None:
        """An int32 bias: its scale is that of the product's input times that of its weight."""
        x, w = product.inputs[0], product.inputs[1]
        if x is None or w is None or Key(_name(w), product.name) not in self.entries:
            return
        if product.op_type == "ConvTranspose" and query.attribute(product, "group", 1) > 1:
            return
        if self.recipe.style is Style.QOPERATOR and reader is not product:
            return  # MatMulIntegerToFloat takes the bias in float
        x_key = Key(_name(x)) if x in self.level else Key(_name(x), product.name)
        if x_key in self.entries:
            self.entries[Key(_name(bias), reader.name)] = Derived(tuple(x_key), (_name(w), product.name))  # type: ignore[arg-type]

    def _output(self, node: ir.Node, rule: OpRule) -> None:
        """The node's results are quantized for every reader, behind a clamp that this makes superfluous."""
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if not isinstance(result, Out) or not query.is_float(value):
                continue
            value = self._behind_clamp(value)
            self._place(value, self._entry(result))

    def _entry(self, result: Out) -> Entry:
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme):
            return Dynamic()
        if result.low is None or result.high is None or scheme.qtype.is_float:
            return Measured(scheme)
        return Bounded(scheme, result.low, result.high)

    def _place(self, value: ir.Value, entry: Entry) -> None:
        self.level.add(value)
        self.entries[Key(_name(value))] = entry

    def _behind_clamp(self, value: ir.Value) -> ir.Value:
        """The output of the Relu or Clip that reads this value alone, when the quantized range replaces it exactly."""
        scheme = self.recipe.activations
        clamp = query.only_reader(value)
        if (
            clamp is None
            or clamp.op_type not in ("Relu", "Clip")
            or clamp.graph is not value.graph
            or clamp.inputs[0] is not value
            or clamp.name in self.reasons
            or not self.recipe.absorb_activations
            or not isinstance(scheme, Scheme)
            or scheme.symmetric
            or scheme.qtype.is_float
            or scheme.qtype.bits < 8
            or self._avoided(clamp.outputs[0])
        ):
            return value
        bounds = clamp_bounds(clamp)
        if bounds is None or bounds[0] != 0.0 or bounds[1] <= 0.0:
            return value
        self.absorbed[clamp.name or ""] = f"the quantized range of {_name(clamp.outputs[0])} starts at zero as it does"
        return clamp.outputs[0]

    # ---- between products

    def _follower(self, node: ir.Node, rule: OpRule, leads: set[ir.Value]) -> None:
        acts = self._acts(node, rule)
        if not acts:
            self._skip(node, "all its inputs are constant")
            return
        bad = next((self._avoided(v) for v in (*acts, *node.outputs) if self._avoided(v)), None)
        if bad:
            self._skip(node, bad)
            return
        if not self.q.everywhere:
            if not all(v in self.level for v in acts):
                self._skip(node, "its input is float")
                return
            if not any(v in leads for v in node.outputs):
                self._skip(node, "no quantized operator reads its result")
                return
        form = form_of(rule, self.q)
        self.quantized[node.name or ""] = Quantized(node.op_type, form.op_type if form is not None else node.op_type)
        for i, value in enumerate(node.inputs):
            if value is not None:
                role = rule.role(i)
                if isinstance(role, Act):
                    self._activation(node, value)
                elif isinstance(role, Weight) and weight_of(value) is not None:
                    self._weight(node, role, value)
                elif isinstance(role, Bias) and query.constant(value) is not None and self._quantizes_bias():
                    self._bias(node, value, node)
        self._output(node, rule)

    def _passenger(self, node: ir.Node, rule: OpRule, leads: set[ir.Value]) -> None:
        """Data movement and clamps: quantized when their input is, with the same parameters where values only move."""
        first = node.inputs[0]
        if first is None or first not in self.level:
            self._skip(node, "its input is float")
            return
        if not self.q.everywhere and not any(v in leads for v in node.outputs):
            self._skip(node, "no quantized operator reads its result")
            return
        if any(self._avoided(v) for v in node.outputs):
            self._skip(node, next(self._avoided(v) or "" for v in node.outputs if self._avoided(v)))
            return
        form = form_of(rule, self.q)
        if self.recipe.style is not Style.QDQ and form is None:
            self._skip(node, f"it has no integer spelling in the {self.recipe.style.value} style")
            return
        self.quantized[node.name or ""] = Quantized(node.op_type, form.op_type if form is not None else node.op_type)
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if isinstance(result, Same | Out) and rule.kind is Kind.LOOKUP:
                result = Same()
            if isinstance(result, Same):
                self._place(value, Shared(_name(first)))
            elif isinstance(result, Out):
                self._place(self._behind_clamp(value), self._entry(result))

    def _acts(self, node: ir.Node, rule: OpRule) -> list[ir.Value]:
        return [
            v
            for i, v in enumerate(node.inputs)
            if v is not None and isinstance(rule.role(i), Act) and query.constant(v) is None
        ]

    def _avoided(self, value: ir.Value) -> str | None:
        return self.q.avoid.tensors.get(_name(value))

    def _skip(self, node: ir.Node, reason: str) -> None:
        self.reasons[node.name or ""] = reason

    # ---- weights alone

    def _is_table(self, node: ir.Node, rule: OpRule) -> bool:
        roles = [(i, v) for i, v in enumerate(node.inputs) if isinstance(rule.role(i), Table)]
        return bool(roles) and all(v is not None and query.constant(v) is not None for _, v in roles)

    def _lookup(self, node: ir.Node, rule: OpRule) -> None:
        form = form_of(rule, self.q)
        tables = [v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Table)]
        reason = self._table_refusal(node, tables)
        if reason is not None:
            self._skip(node, reason)
            return
        whole = node.op_type != "Gather"
        for value in tables:
            grain = PerTensor() if whole else PerChannel(0)
            scheme = self.recipe.weights.but(granularity=grain, symmetric=True) if not whole else self.recipe.weights.but(granularity=grain)
            self.entries[Key(_name(value), node.name)] = Constant(scheme)
        self.quantized[node.name or ""] = Quantized(node.op_type, form.op_type if whole and form is not None else node.op_type)

    def _table_refusal(self, node: ir.Node, tables: list[ir.Value]) -> str | None:
        if not self.recipe.quantize_embeddings:
            return "embeddings stay float in this recipe"
        if self.recipe.weights.qtype.bits != 8 or self.recipe.weights.qtype.is_float:
            return "its table would need 8-bit weights"
        if node.op_type == "Gather":
            dims = query.shape(tables[0]) or ()
            if len(dims) != 2 or query.attribute(node, "axis", 0) != 0:
                return "its table is no matrix of rows"
            if (dims[0] or 0) * (dims[1] or 0) < 1 << 14:
                return "its table is too small to gain"
        elif self.recipe.style is Style.QDQ:
            return "it has no quantized spelling in the qdq style"
        return None

    def _recurrent(self, node: ir.Node, rule: OpRule) -> None:
        form = form_of(rule, self.q)
        if self.recipe.weights.qtype.bits != 8 or self.recipe.weights.qtype.is_float:
            self._skip(node, "its weights would need 8 bits")
            return
        if form is None and self.recipe.style is not Style.QDQ:
            self._skip(node, f"it has no integer spelling in the {self.recipe.style.value} style")
            return
        for i, value in enumerate(node.inputs):
            role = rule.role(i)
            if value is not None and isinstance(role, Weight):
                grain = self._gate_grain(value, form is not None)
                scheme = self.recipe.weights.but(granularity=grain, symmetric=self.recipe.weights.qtype.signed)
                self.entries[Key(_name(value), node.name)] = Constant(scheme)
        self.quantized[node.name or ""] = Quantized(node.op_type, form.op_type if form is not None else node.op_type)


    def _gate_grain(self, weight: ir.Value, fused: bool) -> Granularity:
        """One scale a gate row: a block as long as the row, where the kernel takes them per direction."""
        if isinstance(self.recipe.weights.granularity, PerTensor):
            return PerTensor()
        dims = query.shape(weight) or ()
        return PerBlock(int(dims[2] or 1), 2) if fused and len(dims) == 3 else PerChannel(1)


def _or_channel(axis: int | None) -> PerChannel | PerTensor:
    return PerChannel(axis) if axis is not None else PerTensor()


def _name(value: ir.Value) -> str:
    return value.name or ""


def recipe_is_static(recipe: Recipe) -> bool:
    """Whether activations have calibrated parameters."""
    return isinstance(recipe.activations, Scheme)
