"""Known parameters passed on where that changes no result.

With ``Q`` for rounding to a grid: moving values commutes with it, ``Q(move(x)) = move(Q(x))``; so does a
clamp, ``Q(clamp(x)) = Q(clamp(Q(x)))``, since both never swap two values, and zero is on every grid. What is
on a grid stays as it is when it is rounded to it again.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from octavo.core.granularity import PerTensor
from octavo.core.plan import Key, Shared
from octavo.core.qparams import QParams
from octavo.model.graph import query
from octavo.ops import Act, Kind, OpRule, Same, rule_of
from octavo.planning.state import State, name_of


def share(state: State, known: Mapping[Key, QParams]) -> None:
    """Add ``Shared`` entries, backwards from what has parameters and forwards to where integers are read."""
    _Sharing(state, known).run()


class _Sharing:
    def __init__(self, state: State, known: Mapping[Key, QParams]) -> None:
        self.state, self.known = state, known
        self.edges = {key.tensor for key in state.entries if key.consumer is not None}

    def run(self) -> None:
        for node in reversed(self.state.nodes):
            self._back(node)
        wanted = self._wanted()
        for node in self.state.nodes:
            self._forth(node, wanted)

    def _back(self, node: ir.Node) -> None:
        rule = rule_of(node)
        if rule is None or not _keeps(node, rule):
            return
        made = [v for v in node.outputs if query.is_float(v)]
        if self._common([self._params(Key(name_of(v))) for v in made]) is None:
            return
        for value in _moved(node):
            if (
                query.constant(value) is None
                and not self.state.is_quantized(value)
                and value.name not in self.edges
                and query.only_reader(value) is node
                and value.graph is node.graph
                and query.is_float(value)
            ):
                self.state.place(value, Shared(name_of(made[0])))

    def _forth(self, node: ir.Node, wanted: set[ir.Value]) -> None:
        rule = rule_of(node)
        if rule is None or not _keeps(node, rule) or node.op_type == "Clip":
            return
        keys = [self.state.key(v, node) for v in _moved(node)]
        common = self._common([self._params(key) for key in keys])
        if common is None or keys[0] is None:
            return
        for value in node.outputs:
            key = Key(name_of(value))
            if not query.is_float(value) or value.name in self.edges:
                continue
            own = self.known.get(key)
            repeats = own is not None and own.same_as(common) and self.state.root(keys[0]) != key
            if repeats or (value in wanted and key not in self.state.entries):
                self.state.place(value, Shared(*keys[0]))

    def _wanted(self) -> set[ir.Value]:
        """Return the values that an integer operator reads, directly or moved."""
        found: set[ir.Value] = set()
        for node in reversed(self.state.nodes):
            rule = rule_of(node)
            if rule is None:
                continue
            if rule.is_linear:
                if self.state.key(node.inputs[1], node) is not None:
                    found.update(v for v in node.inputs[:2] if v is not None)
            elif all(v in found or self.state.is_quantized(v) for v in node.outputs if query.is_float(v)):
                found.update(_moved(node) if _keeps(node, rule) else rule.reads(node, Act))
        return found

    def _params(self, key: Key | None) -> QParams | None:
        found = self.known.get(self.state.root(key)) if key is not None else None
        return found if found is not None and isinstance(found.granularity, PerTensor) else None

    def _common(self, params: list[QParams | None]) -> QParams | None:
        """Return the parameters that all have, or None."""
        first = params[0] if params else None
        same = first is not None and all(p is not None and p.same_as(first) for p in params)
        return first if same else None


def _keeps(node: ir.Node, rule: OpRule) -> bool:
    """Whether a node's results are values that it reads, moved or clamped."""
    if rule.breaks_ties or not node.inputs or node.inputs[0] is None or rule.refusal(node) is not None:
        return False
    if rule.kind is Kind.CLAMP or query.is_op(node, "Concat"):
        return True
    return rule.passes_values and isinstance(rule.result(node), Same)


def _moved(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node moves."""
    count = None if query.is_op(node, "Concat") else 1
    return [v for v in node.inputs[:count] if v is not None]
