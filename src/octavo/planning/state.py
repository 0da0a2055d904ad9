"""A plan in the making: what has been decided so far, and how a decision is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Entry, Fixed, Key, Measured, Quantized, Shared, Skipped
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.ops import Lowering
from octavo.ops.patterns import BOOKKEEPING
from octavo.planning.selection import Selection


@dataclass(frozen=True)
class Avoid:
    """What calibration has shown to be no good, with reasons; the plan is made again around it."""

    nodes: Mapping[str, str] = field(default_factory=dict)
    tensors: Mapping[str, str] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()  # those of the tensors of which calibration saw no value

    def __bool__(self) -> bool:
        return bool(self.nodes or self.tensors)

    def and_also(self, more: Avoid) -> Avoid:
        """Return what either of two speaks against."""
        return Avoid(
            {**self.nodes, **more.nodes}, {**self.tensors, **more.tensors}, self.unseen | more.unseen
        )


class State:
    """Entries, quantized nodes, fused clamps, and the reasons why the other nodes stay float.

    A value is quantized for all its consumers where its tensor has an entry, and for one of them where the
    edge has one.
    """

    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], selection: Selection, avoid: Avoid) -> None:
        self.model, self.nodes, self.selection, self.avoid = model, nodes, selection, avoid
        self.entries: dict[Key, Entry] = {}
        self.quantized: dict[str, Quantized] = {}
        self.fused: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.bias_adds: set[str] = set()  # the Adds that are the biases of linear layers
        self.rounded: tuple[tuple[str, str | None], ...] = ()

    # ---- nodes

    def skip(self, node: ir.Node, reason: str) -> None:
        """Leave a node float, and say why."""
        self.reasons[node.name or ""] = reason

    def take(
        self,
        node: ir.Node,
        lowering: Lowering | str | None = None,
        add: ir.Node | None = None,
        *,
        accuracy_level: int = 4,
    ) -> None:
        """Quantize a node: lowered to another operator, and together with the Add that is its bias."""
        becomes = lowering.op_type if isinstance(lowering, Lowering) else lowering
        name, bias = node.name or "", (add.name or "") if add is not None else None
        self.quantized[name] = Quantized(
            node.op_type, node.op_type if becomes is None else becomes, bias, accuracy_level
        )
        if bias is not None:
            self.bias_adds.add(bias)
            self.reasons.pop(bias, None)

    def is_open(self, node: ir.Node) -> bool:
        """Whether nothing has been decided about a node yet."""
        return not (node.name in self.reasons or node.name in self.fused or node.name in self.bias_adds)

    def skipped(self) -> tuple[Skipped, ...]:
        """Return the nodes that compute on floats and stay float, in the order of the graph."""
        return tuple(
            Skipped(node.name or "", node.op_type, self.reasons[node.name or ""])
            for node in self.nodes
            if node.name in self.reasons
            and node.op_type not in BOOKKEEPING
            and any(query.element_type(v) in (None, *query.FLOATS) for v in node.outputs)
        )

    # ---- values

    def place(self, value: ir.Value, entry: Entry, consumer: ir.Node | None = None) -> Key:
        """Quantize a value for all its consumers, or for one of them."""
        key = Key(name_of(value), consumer.name if consumer is not None else None)
        self.entries[key] = entry
        return key

    def is_quantized(self, value: ir.Value | None) -> bool:
        """Whether a value is quantized for all its consumers."""
        return value is not None and (value.name, None) in self.entries

    def key(self, value: ir.Value | None, consumer: ir.Node) -> Key | None:
        """Return the key under which a node reads a value, or None where it reads the float value."""
        if value is None:
            return None
        edge, tensor = (value.name, consumer.name), (value.name, None)  # equal to keys, and made faster
        found = edge if edge in self.entries else tensor if tensor in self.entries else None
        return Key(*found) if found is not None else None

    def root(self, key: Key) -> Key:
        """Return the key whose parameters this one has, through any chain of sharing."""
        while isinstance(entry := self.entries.get(key), Shared):
            key = entry.key
        return key

    def scheme(self, key: Key) -> Scheme | None:
        """Return the scheme that a key is quantized by; None where it has no scheme of its own."""
        entry = self.entries.get(self.root(key))
        return entry.scheme if isinstance(entry, Measured | Bounded | Fixed | Constant) else None

    def avoided(self, value: ir.Value) -> str | None:
        """Return the reason why a value has to stay float, if there is one."""
        return self.avoid.tensors.get(name_of(value))


def name_of(value: ir.Value | None) -> str:
    """Return the name of a value; in a prepared model each has one."""
    return (value.name or "") if value is not None else ""
