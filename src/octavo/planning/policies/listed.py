"""The policy of the placement ``listed``: each node of the op types that are requested, by a rule of its own.

What is done with a node depends on its operator and on whether its input is quantized already, never on what
a target gains or on what reads it. Entries sit on tensors, weights too: each consumer of a quantized tensor
reads it quantized. A tensor that only a Relu or Clip reads takes the range of what that makes of it; where
the quantized range does the clamp's work, the clamp is fused.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Key, Measured, Shared
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.model.graph import query
from octavo.ops import Kind, Weight, axis_of, rule_of
from octavo.ops.listed import PAIRS, Treatment
from octavo.planning import barriers, biases, clamps, legality, weights
from octavo.planning.policies.policy import Policy
from octavo.planning.refusals import FLOAT_INPUT, dequantized_by, is_dequantized
from octavo.planning.state import name_of
from octavo.targets import Target


class BlocksError(RecipeError):
    """Blocks were requested for a weight that is not a matrix."""


class ListedPolicy(Policy, abc.ABC):
    """What the styles share: entries of tensors, weights and biases, and tensors that are named."""

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.listing = recipe.listing
        self.overridden = {o.tensor for o in recipe.overrides}

    def walked(self, model: ir.Model, nodes: Sequence[ir.Node]) -> Sequence[ir.Node]:
        """Return the nodes of the main graph, and those inside If, Loop and Scan where they are requested."""
        return nodes if self.listing.subgraphs else [node for node in nodes if node.graph is model.graph]

    @abc.abstractmethod
    def decide(self, node: ir.Node) -> str | None:
        """Place the entries of one node, or return the reason why it stays float."""

    # ---- entries

    def may(self, *values: ir.Value | None) -> bool:
        """Whether values can be quantized: floats, not avoided, and not quantized by the model itself."""
        for v in values:
            if v is None or not query.is_float(v) or self.state.avoided(v) is not None or is_dequantized(v):
                return False
        return True

    def activation(self, value: ir.Value | None) -> bool:
        """Quantize a value for all consumers, by its range, and say whether it is quantized."""
        if value is None or self.recipe.activations is None or not self.may(value):
            return False
        if not self.state.is_quantized(value):
            self.state.place(value, self._entry(value))
        return True

    def _entry(self, value: ir.Value) -> Entry:
        scheme, stored = self.recipe.activations, is_stored(value)
        if isinstance(scheme, Scheme):
            return Constant(self.operand_scheme(scheme)) if stored else Measured(scheme)
        kind = (scheme or DynamicScheme()).qtype
        return Constant(Scheme(kind)) if stored else Dynamic(kind)

    def operand_scheme(self, scheme: Scheme) -> Scheme:
        """Return how a constant beside activations is quantized: in their type, by its own values."""
        return scheme.but(restricted=False, reduce_range=self.recipe.weights.reduce_range)

    def weight(self, node: ir.Node, index: int) -> bool:
        """Quantize a constant operand as a weight, and a computed one as an activation."""
        value = node.inputs[index]
        if value is None or not is_stored(value):
            return self.activation(value)
        if not self.may(value):
            return False
        if not self.state.is_quantized(value):
            self.state.place(value, Constant(self.weight_scheme(node, index)))
        return True

    def weight_scheme(self, node: ir.Node, index: int) -> Scheme:
        """Return the scheme of weights along the channels of this operator."""
        rule, rank = rule_of(node), query.rank(node.inputs[index]) or 0
        role = rule.role(index) if rule is not None else None
        weight = role if isinstance(role, Weight) else Weight()
        axis = dict(self.listing.channel_axes).get("MatMul") if node.op_type == "MatMul" else None
        if axis is None:
            axis = axis_of(weight.axis, node)
        axis = axis % rank if axis is not None and -rank <= axis < rank else None
        grain = self.recipe.weights.granularity
        if isinstance(grain, PerBlock) and grain.axis is None and rank != 2:
            raise BlocksError(
                f"{name_of(node.inputs[index])!r} of node {node.name!r} has {rank} axes, and blocks are for"
                f" matrices; exclude the node, or leave {node.op_type} out of the op types."
            )
        lowering = rule.lowerings.get(self.style) if rule is not None else None
        found = weights.along(self.recipe.weights, axis, axis_of(weight.sums, node) or 0, rank, lowering)
        if self.listing.symmetric_channels and isinstance(found.granularity, PerChannel):
            return found.but(symmetric=True)
        return found

    def bias(self, node: ir.Node) -> None:
        """Make the constant bias of a layer int32, where its input and its weight are quantized."""
        value = query.operand(node, 2)
        if value is None or not is_stored(value) or not self.may(value) or not biases.are_int32(self.recipe):
            return
        if not all(self.state.is_quantized(v) for v in node.inputs[:2]):
            self._bias_beside_quantized(node, value)
            return
        if name_of(value) in self.overridden and self.style is Style.QDQ:
            self.weight(node, 2)
        else:
            biases.place(self.state, value, node, node, make_room=self.listing.room_for_biases)

    def _bias_beside_quantized(self, node: ir.Node, bias: ir.Value) -> None:
        """Make a bias int32 where the model itself has quantized the input or the weight of its layer."""
        if self.style is not Style.QDQ:
            return
        x, w = node.inputs[:2]
        for value in (x, w):
            found = dequantized_by(value)
            if found is None and not self.state.is_quantized(value):
                return
            if found is not None and not isinstance(found.granularity, PerTensor | PerChannel):
                return
        room = self.listing.room_for_biases and self.state.is_quantized(w)
        self.state.place(bias, Derived((name_of(x), None), (name_of(w), None), room), node)

    def result(self, node: ir.Node, value: ir.Value) -> None:
        """Quantize a result by its own range."""
        if node.op_type not in self.listing.float_outputs:
            self.activation(value)

    def can_fuse(self, clamp: ir.Node) -> bool:
        """Whether the quantized range of what a Relu or Clip makes does its work."""
        scheme = self.recipe.activations
        return (
            isinstance(scheme, Scheme)
            and self.may(clamp.outputs[0])
            and clamps.can_fuse(clamp, Measured(scheme), self.state, self.recipe)
        )

    # ---- tensors that the recipe names

    def survey(self) -> None:
        """Quantize the tensors that are to have the parameters of another one."""
        self.selected = [node for node in self.state.nodes if node.name not in self.state.reasons]
        values = query.values(self.state.model) if self.listing.shared else {}
        for tensor, source in self.listing.shared:
            value = values.get(tensor)
            if value is None or self.state.is_quantized(value) or not self.may(value):
                continue
            if self.activation(values.get(source)):
                self.state.place(value, Shared(source))

    def finish(self) -> None:
        """Quantize the tensors and biases that are named, and take over ranges that are known better."""
        named = self.listing.tensors or self.listing.biases
        values = query.values(self.state.model) if named else {}
        for tensor in self.listing.tensors:
            self.activation(values.get(tensor))
        if self.listing.biases:
            self._named_biases(values)
        scheme = self.recipe.activations
        if isinstance(scheme, Scheme) and not scheme.qtype.is_float:
            for node in self.selected:
                self._known_range(node)

    def _named_biases(self, values: Mapping[str, ir.Value]) -> None:
        nodes, state = {node.name: node for node in query.nodes(self.state.model)}, self.state
        for consumer, bias, x, w in self.listing.biases:
            value = _held(nodes.get(consumer), bias)
            if value is None or state.is_quantized(value) or not self.may(value):
                continue
            if Key(name_of(value), consumer) in state.entries:
                continue
            if not (state.is_quantized(values.get(x)) and state.is_quantized(values.get(w))):
                raise RecipeError(
                    f"The bias {bias!r} of node {consumer!r} takes its scale from {x!r} and {w!r}; quantize"
                    " both."
                )
            derived = Derived((x, None), (w, None), self.listing.room_for_biases)
            state.place(value, derived, nodes[consumer])

    def _known_range(self, node: ir.Node) -> None:
        """Take the range of what only a clamp reads from its result, and that of a Softmax from 0 to 1."""
        rule = rule_of(node)
        value = node.inputs[0] if rule is not None and rule.kind is Kind.CLAMP else None
        if value is not None:
            entry, output = self.state.entries.get(Key(name_of(value))), node.outputs[0]
            alone = query.only_reader(value) is node and self.state.avoided(output) is None
            if isinstance(entry, Measured) and alone:
                self.state.place(value, Measured(entry.scheme, of=name_of(output)))
        elif query.is_op(node, "Softmax"):
            entry = self.state.entries.get(Key(name_of(node.outputs[0])))
            if isinstance(entry, Measured):
                self.state.place(node.outputs[0], Bounded(entry.scheme, 0.0, 1.0))

    # ---- after the walk

    def settle(self, entries: Mapping[Key, Entry]) -> None:
        """Raise where the runtime would fail, or compute something else."""
        taken = (node for node in self.state.nodes if node.name in self.state.quantized)
        legality.check_tensors(entries, taken, self.recipe)

    def barriers(self, entries: Mapping[Key, Entry]) -> tuple[str, ...]:
        """Return the nodes that the runtime must not fuse: around float8 only."""
        scheme = self.recipe.activations
        if not isinstance(scheme, Scheme) or not scheme.qtype.is_float:
            return ()
        return barriers.find(query.nodes(self.state.model), self.state.quantized, entries, self.target)


class ListedPairs(ListedPolicy):
    """QDQ: a treatment for each operator that has one, and all floats quantized for the others."""

    def decide(self, node: ir.Node) -> str | None:
        """Place the entries of one node, or return the reason why it stays float."""
        before = len(self.state.entries)
        reason = self._treat(node, PAIRS.get(node.op_type, Treatment.ALL))
        if reason is not None or node.name in self.state.fused:
            return reason
        touched = any(self.state.is_quantized(v) for v in (*node.inputs, *node.outputs))
        if not touched and len(self.state.entries) == before:
            return "it has no float values to quantize"
        self.state.take(node)
        return None

    def _treat(self, node: ir.Node, treatment: Treatment) -> str | None:
        match treatment:
            case Treatment.ALL:
                for value in node.inputs:
                    self.activation(value)
                for value in node.outputs:
                    self.result(node, value)
            case Treatment.WEIGHTED | Treatment.PRODUCT | Treatment.FIRST:
                self._weighted(node, treatment)
            case Treatment.CLAMP:
                return self._clamp(node)
            case Treatment.PAD:
                return self._pad(node)
            case Treatment.CHOICE:
                return self._choice(node)
            case Treatment.MOVE | Treatment.LOOKUP | Treatment.SPLIT:
                always = treatment is Treatment.SPLIT or self.listing.move_anything
                if always or (treatment is Treatment.LOOKUP and is_stored(node.inputs[0])):
                    self.activation(node.inputs[0])
                return self._moved(node)
        return None

    def _weighted(self, node: ir.Node, treatment: Treatment) -> None:
        if treatment is Treatment.PRODUCT:
            self.weight(node, 0)
        else:
            self.activation(node.inputs[0])
        if treatment is not Treatment.FIRST:
            self.weight(node, 1)
            self.bias(node)
        self.result(node, node.outputs[0])

    def _clamp(self, node: ir.Node) -> str | None:
        first, output = node.inputs[0], node.outputs[0]
        if first is None or not self.state.is_quantized(first):
            return FLOAT_INPUT
        if node.op_type in self.listing.float_outputs or not self.can_fuse(node):
            self.result(node, output)
            return None
        del self.state.entries[Key(name_of(first))]
        self.activation(output)
        clamps.fuse(node, self.state)
        return None

    def _moved(self, node: ir.Node) -> str | None:
        first = node.inputs[0]
        if not self.state.is_quantized(first):
            return FLOAT_INPUT
        if node.op_type not in self.listing.float_outputs:
            for value in node.outputs:
                if self.may(value) and not self.state.is_quantized(value):
                    self.state.place(value, Shared(name_of(first)))
        return None

    def _pad(self, node: ir.Node) -> str | None:
        self.activation(node.inputs[0])
        fill = query.operand(node, 2)
        if fill is None or query.attribute(node, "mode", "constant") != "constant":
            return self._moved(node)
        reason = None
        if query.scalar(fill) == 0.0:
            reason = self._moved(node)
        else:
            self.result(node, node.outputs[0])
        self.activation(fill)
        return reason

    def _choice(self, node: ir.Node) -> str | None:
        chosen = node.inputs[1:3]
        if not self.listing.move_anything and not all(self.state.is_quantized(v) for v in chosen):
            return FLOAT_INPUT
        for value in chosen:
            self.activation(value)
        self.result(node, node.outputs[0])
        return None


def is_stored(value: ir.Value | None) -> bool:
    """Whether a value is an initializer and nothing else."""
    return value is not None and value.producer() is None and query.constant(value) is not None


def _held(node: ir.Node | None, bias: str) -> ir.Value | None:
    """Return what a node reads under a name; a copy, made where two layers share it, has a number behind."""
    held = [v for v in node.inputs if query.constant(v) is not None] if node is not None else []
    exact = (v for v in held if name_of(v) == bias)
    copies = (v for v in held if name_of(v).startswith(bias) and name_of(v)[len(bias) :].isdigit())
    return next(exact, None) or next(copies, None)
