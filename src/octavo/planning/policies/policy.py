"""What one way of planning decides for itself.

The planner (:func:`octavo.planning.build`) walks over the graph once and does what all ways share: selection,
overrides, fusion barriers, compressed weights, and the plan itself. It asks a policy, in this order:

1. ``begin``: the state of the plan is handed over, still empty; keep it, and look at the graph.
2. ``refusal``, for every node that the recipe selects: why it stays float whatever its neighbours do.
3. ``survey``: all refusals are known; place entries that do not depend on the walk.
4. ``decide``, for every node that is still open, in the order of the graph: place the entries of what it
   reads and makes, ``state.take`` it, and return None; or place nothing and return the reason why it stays
   float. By default this goes to one method for each kind of operator, and each of these refuses.
5. ``finish``: the walk is over; complete or remove entries.
6. ``settle``, once overrides are applied: raise where the runtime would fail, or change lowerings.
7. ``barriers``: the nodes that the runtime must not fuse.

Entries say where parameters come from (``octavo.core.plan``), and sit on a tensor or on the edge to one
consumer. What a policy needs to place them is in :mod:`~octavo.planning.state`, when a Relu or Clip is fused
in :mod:`~octavo.planning.clamps`, int32 biases in :mod:`~octavo.planning.biases`, schemes of weights in
:mod:`~octavo.planning.weights`, and reasons that several policies give in :mod:`~octavo.planning.refusals`.
An object serves one plan at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from octavo.core.plan import Entry, Key
from octavo.core.recipe import Recipe
from octavo.ops import Kind, OpRule, rule_of
from octavo.planning.refusals import NO_RULE
from octavo.planning.state import State
from octavo.targets import Target


class Policy:
    """Which nodes and tensors are quantized, and with what parameters.

    ``recipe`` has the style of the plan, the selection of nodes and the overrides; ``target`` what the
    runtime accepts and fuses.
    """

    state: State

    def __init__(self, recipe: Recipe, target: Target) -> None:
        self.recipe, self.target, self.style = recipe, target, recipe.style

    def walked(self, model: ir.Model, nodes: Sequence[ir.Node]) -> Sequence[ir.Node]:
        """Return the nodes that the plan may quantize; by default all of them, in subgraphs too."""
        return nodes

    def begin(self, state: State) -> None:
        """Take over the state of a new plan."""
        self.state = state

    def refusal(self, node: ir.Node) -> str | None:
        """Return why a selected node stays float whatever its neighbours do, or None."""
        return None

    def survey(self) -> None:
        """Look at the graph as a whole, before the walk."""

    def decide(self, node: ir.Node) -> str | None:
        """Place the entries of one node, or return the reason why it stays float."""
        rule = rule_of(node)
        if rule is None:
            return NO_RULE
        match rule.kind:
            case Kind.LINEAR:
                return self.linear(node, rule)
            case Kind.ELEMENTWISE:
                return self.elementwise(node, rule)
            case Kind.RECURRENT:
                return self.recurrent(node, rule)
            case Kind.EXPERTS:
                return self.experts(node, rule)
            case Kind.LOOKUP:
                return self.lookup(node, rule)
            case Kind.CLAMP:
                return self.clamp(node, rule)
            case Kind.DATA_MOVEMENT:
                return self.movement(node, rule)

    def linear(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize a linear operator, or return why not."""
        return _NOT_REQUESTED

    def elementwise(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize an operator between linear ones, or return why not."""
        return _NOT_REQUESTED

    def movement(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize data movement, or return why not."""
        return _NOT_REQUESTED

    def clamp(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize a Relu or Clip that was not fused, or return why not."""
        return self.movement(node, rule)

    def lookup(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the table of a lookup or move computed rows, or return why not."""
        return self.movement(node, rule)

    def recurrent(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the weights of a recurrent layer, or return why not."""
        return _NOT_REQUESTED

    def experts(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the weights of experts, or return why not."""
        return "experts are quantized in blocks, by a recipe that leaves activations in float, such as W4"

    def finish(self) -> None:
        """Complete the entries after the walk."""

    def settle(self, entries: Mapping[Key, Entry]) -> None:
        """Look at the entries with all overrides applied; raise where the runtime would fail on them."""

    def barriers(self, entries: Mapping[Key, Entry]) -> tuple[str, ...]:
        """Return the names of the nodes that get a fusion barrier."""
        return ()


_NOT_REQUESTED = "this policy does not quantize operators of its kind"
