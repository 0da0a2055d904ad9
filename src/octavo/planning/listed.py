"""The placement ``listed``: each node of the op types asked for is quantized by a rule of its own.

Nodes are walked once, forwards. What a node does depends on its operator and on whether its input is
quantized already, never on what a target gains or on what reads it. Entries sit on tensors, weights too: who
reads a quantized tensor reads it quantized. A tensor that only a Relu or Clip reads takes the range of what
that makes of it; where the quantized range does the clamp's work, the clamp goes.
"""

from __future__ import annotations

import abc

import onnx_ir as ir

from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.plan import (
    Bounded,
    Constant,
    Derived,
    Entry,
    Fixed,
    Key,
    Measured,
    Plan,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.model import query
from octavo.ops import OpRule, Weight, axis_of, rule_of
from octavo.ops.hooks import clamp_bounds
from octavo.planning import asked, guards, hazards, legal, overrides, weights
from octavo.planning.candidates import Question, is_float_work

CLAMPS = frozenset({"Relu", "Clip"})
FLOAT_INPUT = "its input is float"


class BlocksError(RecipeError):
    """Blocks for a weight that is no matrix."""


class Listed(abc.ABC):
    """What the styles share: entries of tensors, weights, biases and clamps."""

    def __init__(self, model: ir.Model, nodes: list[ir.Node], question: Question) -> None:
        self.model = model
        self.q = question
        self.recipe = question.recipe
        self.listing = question.recipe.listing
        graph = model.graph
        self.nodes = nodes if self.listing.subgraphs else [n for n in nodes if n.graph is graph]
        self.all_nodes = nodes
        self.entries: dict[Key, Entry] = {}
        self.level: set[ir.Value] = set()
        self.quantized: dict[str, Quantized] = {}
        self.absorbed: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.named = {o.tensor for o in self.recipe.overrides}
        self.converted = {o.tensor for o in self.recipe.overrides if o.readers is not None}
        self.axes = dict(self.listing.channel_axes)

    def plan(self) -> Plan:
        """The plan of all nodes."""
        selected = []
        for node in self.nodes:
            reason = self.q.selection.refusal(node) or self.q.avoid.nodes.get(node.name or "")
            if reason is not None:
                self.skip(node, reason)
            else:
                selected.append(node)
        asked.shared(self)
        for node in selected:
            self.decide(node)
        asked.tensors(self)
        asked.biases(self)
        for node in selected:
            self._settle(node)
        entries = overrides.apply(self.entries, self.recipe, self.model)
        self._check(entries)
        skipped = tuple(
            Skipped(n.name or "", n.op_type, self.reasons[n.name or ""])
            for n in self.nodes
            if n.name in self.reasons and is_float_work(n)
        )
        return Plan(
            style=self.recipe.style,
            entries=entries,
            nodes=self.quantized,
            absorbed=self.absorbed,
            skipped=skipped,
            guards=self.guards(entries),
            spelling=self.recipe.spelling,
        )

    @abc.abstractmethod
    def decide(self, node: ir.Node) -> None:
        """Place the entries of one node."""

    def _check(self, entries: dict[Key, Entry]) -> None:
        """Raise where the runtime would fail, or compute something else."""
        by_channel = {
            key.tensor: (key, entry.scheme)
            for key, entry in entries.items()
            if isinstance(entry, Constant | Fixed) and key.reader is None
        }
        for key, scheme in by_channel.values():
            if self.recipe.style is Style.QDQ:
                legal.blocks(key, scheme, self.recipe)
        for node in self.nodes:
            rule = rule_of(node) if node.name in self.quantized else None
            for index, value in enumerate(node.inputs if rule is not None else ()):
                role = rule.role(index) if rule is not None else None
                if (
                    isinstance(role, Weight)
                    and name(value) in by_channel
                    and axis_of(role.axis, node) is not None
                ):
                    legal.channels(*by_channel[name(value)], role, node)

    def guards(self, entries: dict[Key, Entry]) -> tuple[str, ...]:
        """Nodes that the runtime must not rewrite: around float8 only."""
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme) or not scheme.qtype.is_float:
            return ()
        return guards.find(self.all_nodes, self.quantized, self.level, entries, self.q.target)

    # ---- pieces of a rule

    def skip(self, node: ir.Node, reason: str) -> None:
        """Leave a node float."""
        self.reasons[node.name or ""] = reason

    def take(self, node: ir.Node, form: str | None = None) -> None:
        """Count a node as quantized."""
        self.quantized[node.name or ""] = Quantized(node.op_type, node.op_type if form is None else form)

    def may(self, value: ir.Value | None) -> bool:
        """Whether a value can be quantized: a float, not avoided, and not quantized by the model itself."""
        if value is None or not query.is_float(value) or name(value) in self.q.avoid.tensors:
            return False
        producer = value.producer()
        return producer is None or producer.op_type != "DequantizeLinear"

    def activation(self, value: ir.Value | None) -> bool:
        """Quantize a value for every reader; a constant takes the type of activations."""
        scheme = self.recipe.activations
        if value is None or not isinstance(scheme, Scheme) or not self.may(value):
            return False
        if value not in self.level:
            key = Key(name(value))
            self.level.add(value)
            stored = is_stored(value)
            self.entries[key] = Constant(self.operand_scheme(scheme)) if stored else Measured(scheme)
        return True

    def operand_scheme(self, scheme: Scheme) -> Scheme:
        """How a constant beside activations is quantized: in their type, by its own values."""
        return scheme.but(restricted=False, reduce_range=self.recipe.weights.reduce_range)

    def weight(self, node: ir.Node, index: int) -> bool:
        """Quantize a constant operand as a weight; a computed one is an activation."""
        value = node.inputs[index]
        if value is None or not is_stored(value):
            return self.activation(value)
        if not self.may(value):
            return False
        if value not in self.level:
            self.level.add(value)
            self.entries[Key(name(value))] = Constant(self.weight_scheme(node, index, value))
        return True

    def weight_scheme(self, node: ir.Node, index: int, value: ir.Value) -> Scheme:
        """The scheme of weights, along the channels of this operator."""
        scheme = self.recipe.weights
        rule = rule_of(node)
        role = rule.role(index) if rule is not None else None
        grain: Granularity = PerTensor()
        rank = query.rank(value) or 0
        match scheme.granularity:
            case PerChannel(None):
                axis = self.axes.get("MatMul") if node.op_type == "MatMul" else None
                if axis is None and isinstance(role, Weight):
                    axis = axis_of(role.axis, node)
                if axis is not None and -rank <= axis < rank and self._takes_channels(rule, scheme):
                    grain = PerChannel(axis % rank)
            case PerBlock(size, None):
                grain = self._blocks(node, index, size, rank)
            case other:
                grain = other
        if self.listing.symmetric_channels and isinstance(grain, PerChannel):
            scheme = scheme.but(symmetric=True)
        return scheme if grain == scheme.granularity else scheme.but(granularity=grain)

    def _takes_channels(self, rule: OpRule | None, scheme: Scheme) -> bool:
        form = rule.forms.get(self.recipe.style) if rule is not None else None
        return form is None or form.takes_per_channel(scheme)

    def _blocks(self, node: ir.Node, index: int, size: int, rank: int) -> Granularity:
        rule = rule_of(node)
        role = rule.role(index) if rule is not None else None
        if rank != 2:
            raise BlocksError(
                f"{name(node.inputs[index])!r} of node {node.name!r} has {rank} axes, and blocks are for"
                f" matrices; exclude the node, or leave {node.op_type} out of the op types."
            )
        axis = axis_of(role.sums, node) if isinstance(role, Weight) else None
        return PerBlock(size, axis if axis is not None else 0)

    def bias(self, node: ir.Node, index: int = 2) -> bool:
        """An int32 bias, where input and weight are quantized and it is a constant."""
        value = node.inputs[index] if index < len(node.inputs) else None
        x, w = node.inputs[0], node.inputs[1]
        if value is None or x is None or w is None or not is_stored(value) or not self.may(value):
            return False
        if not weights.has_int32_bias(self.recipe) or x not in self.level or w not in self.level:
            return False
        if name(value) in self.named and self.recipe.style is Style.QDQ:
            return self.weight(node, index)
        entry = self.entries[self.root(w)]
        if isinstance(entry, Constant) and not weights.has_channels(value, w, entry.scheme):
            return False
        self.entries[Key(name(value), node.name)] = Derived(
            (name(x), None), (name(w), None), self.listing.room_for_biases
        )
        return True

    def root(self, value: ir.Value) -> Key:
        """The key whose parameters a quantized value has."""
        key = Key(name(value))
        while isinstance(entry := self.entries[key], Shared):
            key = entry.key
        return key

    def result(self, node: ir.Node, value: ir.Value) -> bool:
        """Quantize a result by its own range."""
        if node.op_type in self.listing.float_outputs:
            return False
        return self.activation(value)

    def same(self, node: ir.Node, value: ir.Value) -> None:
        """Quantize a result with the parameters of input 0."""
        first = node.inputs[0]
        if node.op_type in self.listing.float_outputs or first is None or not self.may(value):
            return
        if value not in self.level:
            self.level.add(value)
            self.entries[Key(name(value))] = Shared(name(first))

    # ---- clamps and known ranges

    def holds(self, node: ir.Node) -> bool:
        """Whether a quantized range does what a Relu or Clip does, for what it alone reads."""
        value, output, scheme = node.inputs[0], node.outputs[0], self.recipe.activations
        if (
            value is None
            or not self.recipe.absorb_activations
            or not isinstance(scheme, Scheme)
            or value.producer() is None
            or query.only_reader(value) is not node
            or value.graph is not output.graph
            or name(value) in self.converted
            or not self.may(output)
        ):
            return False
        bounds = clamp_bounds(node)
        if bounds is None or not bounds[0] <= 0.0 <= bounds[1]:
            return False
        entry = overrides.preview(Measured(scheme), name(output), self.recipe)
        if bounds[0] == 0.0:
            return hazards.holds_clamp(entry, bounds[1])
        return isinstance(entry, Measured) and hazards.holds_interval(entry.scheme, *bounds)

    def _settle(self, node: ir.Node) -> None:
        """Ranges that a selected node knows better than calibration of a tensor does."""
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme) or scheme.qtype.is_float:
            return
        if node.op_type in CLAMPS and node.inputs[0] is not None:
            key = Key(name(node.inputs[0]))
            entry = self.entries.get(key)
            if (
                isinstance(entry, Measured)
                and query.only_reader(node.inputs[0]) is node
                and name(node.outputs[0]) not in self.q.avoid.tensors
            ):
                self.entries[key] = Measured(entry.scheme, of=name(node.outputs[0]))
        elif node.op_type == "Softmax":
            key = Key(name(node.outputs[0]))
            entry = self.entries.get(key)
            if isinstance(entry, Measured):
                self.entries[key] = Bounded(entry.scheme, 0.0, 1.0)


def is_stored(value: ir.Value | None) -> bool:
    """Whether a value is an initializer and nothing else."""
    return value is not None and value.producer() is None and query.constant(value) is not None


def name(value: ir.Value | None) -> str:
    """The name of a value."""
    return (value.name or "") if value is not None else ""
