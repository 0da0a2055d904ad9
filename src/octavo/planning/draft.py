"""A plan in the making: what has been decided so far, and how a decision about a tensor is noted.

Which nodes are quantized is decided in :mod:`octavo.planning.build`.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Key, Measured, Quantized
from octavo.core.recipe import DynamicScheme, Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import Act, Bias, OpRule, Out, Table, Weight
from octavo.ops.hooks import clamp_bounds
from octavo.planning import hazards, overrides, weights
from octavo.planning.candidates import Question
from octavo.planning.sources import weight_of


class Draft:
    """Entries, quantized nodes, absorbed clamps, and the reasons why the other nodes stay float."""

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
        self.static = self.recipe.is_static

    def skip(self, node: ir.Node, reason: str) -> None:
        """Leave a node float, and say why."""
        self.reasons[node.name or ""] = reason

    def avoided(self, value: ir.Value) -> str | None:
        """Why a value has to stay float, if it has to."""
        return self.q.avoid.tensors.get(name_of(value))

    def is_excluded(self, node: ir.Node) -> bool:
        """Whether the user has excluded a node."""
        return "excluded" in self.reasons.get(node.name or "", "")

    def barred(self, node: ir.Node, rule: OpRule) -> str | None:
        """Why a value that a node would read quantized has to stay float."""
        bias_is_fixed = self.recipe.style is Style.QOPERATOR and node.op_type in ("Conv", "Gemm")
        for i, value in enumerate(node.inputs):
            role = rule.role(i)
            if value is None or not (
                isinstance(role, Act | Weight | Table) or (isinstance(role, Bias) and bias_is_fixed)
            ):
                continue
            reason = self.avoided(value)
            if reason is not None:
                return reason
        return None

    def activations_of(self, node: ir.Node, rule: OpRule) -> list[ir.Value]:
        """The activations that a node reads."""
        return [
            v
            for i, v in enumerate(node.inputs)
            if v is not None and isinstance(rule.role(i), Act) and query.constant(v) is None
        ]

    def reads(self, node: ir.Node, rule: OpRule, index: int, value: ir.Value) -> None:
        """Note what a node reads at one of its inputs."""
        role = rule.role(index)
        if isinstance(role, Weight) and weight_of(value) is not None:
            self.entries[Key(name_of(value), node.name)] = Constant(
                weights.scheme_of(node, rule, role, value, self.recipe, self.q.target)
            )
        elif isinstance(role, Act | Weight):
            self._activation(node, value)
        elif (
            isinstance(role, Bias)
            and query.constant(value) is not None
            and weights.has_int32_bias(self.recipe)
        ):
            self.bias(node, value, node)

    def _activation(self, node: ir.Node, value: ir.Value) -> None:
        """The node reads this value quantized: as it is for all, or only on this edge."""
        if self.recipe.activations is None or value in self.level:
            return
        if query.constant(value) is not None:
            self._constant_operand(node, value)
        elif isinstance(self.recipe.activations, DynamicScheme):
            self.entries[Key(name_of(value), node.name)] = Dynamic(self.recipe.activations.qtype)
        elif self.q.everywhere:
            self.level.add(value)
            self.entries[Key(name_of(value))] = Measured(self.recipe.activations)
        else:
            self.entries[Key(name_of(value), node.name)] = Measured(self.recipe.activations)

    def _constant_operand(self, node: ir.Node, value: ir.Value) -> None:
        """A constant beside an activation (Add, Mul, Concat) has the activation's type."""
        scheme = self.recipe.activations
        if isinstance(scheme, Scheme):
            self.entries[Key(name_of(value), node.name)] = Constant(scheme)

    def bias(self, reader: ir.Node, bias: ir.Value, product: ir.Node) -> None:
        """An int32 bias: its scale is that of the product's input times that of its weight."""
        x, w = product.inputs[0], product.inputs[1]
        if x is None or w is None or Key(name_of(w), product.name) not in self.entries or self.avoided(bias):
            return
        if product.op_type == "ConvTranspose" and query.attribute(product, "group", 1) > 1:
            return
        if self.recipe.style is Style.QOPERATOR and reader is not product:
            return  # MatMulIntegerToFloat takes the bias in float
        entry = self.entries[Key(name_of(w), product.name)]
        if not isinstance(entry, Constant) or not weights.has_channels(bias, w, entry.scheme):
            return
        x_key = Key(name_of(x)) if x in self.level else Key(name_of(x), product.name)
        if x_key in self.entries:
            self.entries[Key(name_of(bias), reader.name)] = Derived(tuple(x_key), (name_of(w), product.name))  # type: ignore[arg-type]

    def gives(self, node: ir.Node, rule: OpRule) -> None:
        """The node's results are quantized for every reader, behind a clamp that this makes superfluous."""
        for i, value in enumerate(node.outputs):
            result = rule.result(node, i)
            if not isinstance(result, Out) or not query.is_float(value):
                continue
            value = self.behind_clamp(value)
            self.place(value, self.entry_of(result))

    def entry_of(self, result: Out) -> Entry:
        """How a result is quantized: by a range that is measured, or one that is known."""
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme):
            return Dynamic()
        if result.low is None or result.high is None or scheme.qtype.is_float:
            return Measured(scheme)
        return Bounded(scheme, result.low, result.high)

    def place(self, value: ir.Value, entry: Entry) -> None:
        """A value is quantized for every reader."""
        self.level.add(value)
        self.entries[Key(name_of(value))] = entry

    def behind_clamp(self, value: ir.Value) -> ir.Value:
        """The output of the Relu or Clip behind a value, absorbed where the quantized range replaces it."""
        found = self.clamped(value)
        if found is value or self.avoided(found):
            return value
        clamp = found.producer()
        if clamp is not None:
            self.absorbed[clamp.name or ""] = (
                f"the quantized range of {name_of(found)} starts at zero as it does"
            )
        return found

    def clamped(self, value: ir.Value) -> ir.Value:
        """The output of the Relu or Clip that reads this value alone, if a quantized range does the same."""
        scheme = self.recipe.activations
        clamp = query.only_reader(value)
        if (
            clamp is None
            or clamp.op_type not in ("Relu", "Clip")
            or clamp.graph is not value.graph
            or clamp.inputs[0] is not value
            or clamp.name in self.reasons
            or not self.recipe.absorb_activations
            or self.recipe.style is Style.INTEGER  # its results are float, and nothing cuts them off
            or not isinstance(scheme, Scheme)
        ):
            return value
        bounds = clamp_bounds(clamp)
        if bounds is None or bounds[0] != 0.0 or bounds[1] <= 0.0:
            return value
        entry = overrides.preview(Measured(scheme), name_of(clamp.outputs[0]), self.recipe)
        return clamp.outputs[0] if hazards.holds_clamp(entry, bounds[1]) else value


def name_of(value: ir.Value) -> str:
    """A value's name; in a prepared model each has one."""
    return value.name or ""
