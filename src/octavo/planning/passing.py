"""Parameters passed on where that changes no result.

With ``Q`` for rounding to a grid: moving values commutes with it, ``Q(move(x)) = move(Q(x))``; so does a
clamp, ``Q(clamp(x)) = Q(clamp(Q(x)))``, since both never swap two values, and zero is on every grid. What is
on a grid stays as it is when it is rounded to it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from octavo.core.granularity import PerTensor
from octavo.core.plan import Entry, Key, Shared
from octavo.core.qparams import QParams
from octavo.model import query
from octavo.ops import Act, Kind, OpRule, Same, rule_of

_NOT = frozenset({"TopK", "ArgMax"})  # ties that rounding makes change what they choose


class Passing:
    """Adds ``Shared`` entries, backwards from what has parameters and forwards to what wants them."""

    def __init__(
        self, nodes: Sequence[ir.Node], entries: dict[Key, Entry], known: Mapping[Key, QParams]
    ) -> None:
        self.nodes, self.entries, self.known = nodes, entries, known
        self.edges = {key.tensor for key in entries if key.reader is not None}

    def run(self) -> None:
        """Fill in what follows."""
        for node in reversed(self.nodes):
            self._back(node)
        wanted = self._wanted()
        for node in self.nodes:
            self._on(node, wanted)

    def _back(self, node: ir.Node) -> None:
        rule = rule_of(node)
        if rule is None or not _keeps(node, rule):
            return
        made = [v for v in node.outputs if query.is_float(v)]
        params = [self._params(v) for v in made]
        first = params[0] if params else None
        if first is None or not all(p is not None and p.same_as(first) for p in params):
            return
        for value in _read(node, rule):
            if (
                query.constant(value) is None
                and Key(value.name or "") not in self.entries
                and value.name not in self.edges
                and query.only_reader(value) is node
                and value.graph is node.graph
                and query.is_float(value)
            ):
                self.entries[Key(value.name or "")] = Shared(made[0].name or "")

    def _on(self, node: ir.Node, wanted: set[ir.Value]) -> None:
        rule = rule_of(node)
        if rule is None or not _keeps(node, rule) or node.op_type == "Clip":
            return
        params = [self._params(v, node) for v in _read(node, rule)]
        first = params[0] if params else None
        if first is None or not all(p is not None and p.same_as(first) for p in params):
            return
        source = self._key(_read(node, rule)[0], node)
        for value in node.outputs:
            key = Key(value.name or "")
            if source is None or not query.is_float(value) or value.name in self.edges:
                continue
            own = self.known.get(key)
            repeats = own is not None and own.same_as(first) and self._root(source) != key
            if repeats or (value in wanted and key not in self.entries):
                self.entries[key] = Shared(source.tensor, source.reader)

    def _wanted(self) -> set[ir.Value]:
        """Values that an integer operator reads, directly or moved."""
        found: set[ir.Value] = set()
        for node in reversed(self.nodes):
            rule = rule_of(node)
            if rule is None:
                continue
            if rule.kind is Kind.PRODUCT:
                if self._key(node.inputs[1], node) is not None:
                    found.update(v for v in node.inputs[:2] if v is not None)
            elif all(
                v in found or Key(v.name or "") in self.entries for v in node.outputs if query.is_float(v)
            ):
                found.update(_read(node, rule) if _keeps(node, rule) else _acts(node, rule))
        return found

    def _key(self, value: ir.Value | None, node: ir.Node | None) -> Key | None:
        name = value.name or "" if value is not None else ""
        keys: Iterable[Key] = (Key(name),) if node is None else (Key(name, node.name), Key(name))
        return next((key for key in keys if key in self.entries), None)

    def _root(self, key: Key) -> Key:
        while isinstance(entry := self.entries.get(key), Shared):
            key = entry.key
        return key

    def _params(self, value: ir.Value, node: ir.Node | None = None) -> QParams | None:
        key = self._key(value, node)
        found = self.known.get(self._root(key)) if key is not None else None
        return found if found is not None and isinstance(found.granularity, PerTensor) else None


def _keeps(node: ir.Node, rule: OpRule) -> bool:
    """Whether a node's results are values that it reads, moved or clamped."""
    if node.op_type in _NOT or not node.inputs or node.inputs[0] is None or rule.refusal(node) is not None:
        return False
    if rule.kind is Kind.CLAMP or node.op_type == "Concat":
        return True
    return rule.kind in (Kind.MOVE, Kind.LOOKUP) and isinstance(rule.result(node), Same)


def _read(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    """The values that a node moves."""
    if node.op_type == "Concat":
        return [v for v in node.inputs if v is not None]
    return [v for v in node.inputs[:1] if v is not None]


def _acts(node: ir.Node, rule: OpRule) -> list[ir.Value]:
    return [v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Act)]
