"""A plan says, tensor by tensor, what will be done and why; emitters only write it out.

Its entries are those of :mod:`octavo.core.entries`. :mod:`octavo.core.plan_edits` changes a plan as a whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.core import codec
from octavo.core.arguments import check_arguments
from octavo.core.entries import (
    GRAPH_OUTPUT,
    Bounded,
    Compressed,
    Constant,
    Derived,
    Dynamic,
    Entry,
    Fixed,
    HalfCompute,
    HalfStorage,
    Key,
    Measured,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.files import RepeatedNameError, read_bytes, unique, unreadable, write_text
from octavo.core.granularity import PerBlock
from octavo.core.lazy import load_entry
from octavo.core.outputs import refuse_sources
from octavo.core.recipe_parts import Style, WriteOptions
from octavo.core.scheme import Method, MinMax
from octavo.core.shown import Shown
from octavo.errors import RecipeError, TableError, closest

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from octavo.core.plan_edits import Settings


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """What will be done to each node and tensor. Frozen; ``entries`` are in the order of the graph."""

    style: Style
    entries: dict[Key, Entry]
    nodes: dict[str, Quantized]
    fused: dict[str, str] = field(default_factory=dict)  # node → why nothing is lost
    skipped: tuple[Skipped, ...] = ()
    barriers: tuple[str, ...] = ()  # float layers among quantized values; the runtime must not round them
    notes: tuple[str, ...] = ()
    writing: WriteOptions = field(default_factory=WriteOptions)
    rounded: tuple[tuple[str, str | None], ...] = ()  # keys that float readers see rounded too
    compressed: dict[str, Compressed] = field(default_factory=dict)  # initializers whose readers stay float
    half: HalfStorage | HalfCompute | None = None  # 16-bit floats where nothing is quantized

    @property
    def opset(self) -> int:
        """Return the opset that writing this takes: 13 for scales per channel, 21 and 25 for newer types."""
        found = 1
        for key, entry in self.entries.items():
            node = self.nodes.get(key.consumer or "")
            if node is not None and node.lowering in _IN_BYTES and _lies_in_bytes(entry, node):
                continue
            found = max(found, 13)
            if isinstance(entry, Measured | Bounded | Fixed | Constant):
                blocks = isinstance(entry.scheme.granularity, PerBlock)
                found = max(found, entry.scheme.qtype.min_opset, 21 if blocks else 0)
        return found if self.entries else 13

    def needs(self) -> dict[str, Method]:
        """Return the tensors that calibration has to look at, and the method that will read them.

        Where readers of one tensor differ, the method that asks for more: extremes follow from anything.
        """
        found: dict[str, Method] = {}
        for key, entry in self.entries.items():
            if isinstance(entry, Measured):
                tensor = entry.of if entry.of is not None else key.tensor
                if isinstance(found.get(tensor, MinMax()), MinMax):
                    found[tensor] = entry.scheme.method
        return found

    def root(self, key: Key) -> Key:
        """Return the key whose parameters this one has, through any chain of sharing."""
        seen = {key}
        entry = self.entries.get(key)
        while isinstance(entry, Shared):
            key = entry.key
            if key in seen:
                raise TableError(
                    f"The plan shares the parameters of {key} in a circle; remove one of the entries."
                )
            seen.add(key)
            entry = self.entries.get(key)
        return key

    def lookup(self, tensor: str, consumer: str) -> Key | None:
        """Return the key under which this node sees this tensor, or None where it sees the float value."""
        edge, whole = (tensor, consumer), (tensor, None)  # equal to keys, and made faster
        found = edge if edge in self.entries else whole if whole in self.entries else None
        return Key(*found) if found is not None else None

    def edges(self) -> Iterator[tuple[Key, Entry]]:
        """Return the entries that concern one consumer only."""
        return ((key, entry) for key, entry in self.entries.items() if key.consumer is not None)

    def counts(self) -> Counter[str]:
        """Return how many nodes of each op type are quantized."""
        return Counter(node.op_type for node in self.nodes.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, with a row for each entry."""
        return {
            "octavo_plan": 1,
            "style": self.style.value,
            "nodes": {name: codec.encode(node) for name, node in self.nodes.items()},
            "entries": [
                [key.tensor, key.consumer, codec.encode(entry)] for key, entry in self.entries.items()
            ],
            "fused": dict(self.fused),
            "skipped": [codec.encode(s) for s in self.skipped],
            "barriers": list(self.barriers),
            "notes": list(self.notes),
            **({"writing": codec.encode(self.writing)} if self.writing != WriteOptions() else {}),
            **({"rounded": [list(key) for key in self.rounded]} if self.rounded else {}),
            **({"compressed": codec.encode(self.compressed)} if self.compressed else {}),
            **({"half": codec.encode(self.half)} if self.half is not None else {}),
        }

    def __str__(self) -> str:
        text: str = load_entry("octavo.reporting", "plan_tables:plan_table")(self)
        return text

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan that :meth:`to_dict` wrote, perhaps edited since."""
        if not isinstance(data, dict) or data.get("octavo_plan") != 1:
            raise TableError(
                "This is not a plan of version 1; make one with 'octavo plan MODEL -o plan.json'."
            )
        data = codec.current_names("Plan", data)
        known = {"octavo_plan": int, **_FILE}
        for name in data:
            if name not in known:
                raise TableError(
                    f"The plan can't be read: {name}: unknown key{closest(str(name), known) or '.'}"
                    f" Known: {', '.join(known)}."
                )
        missing = {"style", "nodes", "entries"} - data.keys()
        if missing:
            raise TableError(f"The plan can't be read: it has no {' and no '.join(sorted(missing))}.")
        try:
            parts = {
                name: codec.decode(kind, data[name], name) for name, kind in _FILE.items() if name in data
            }
        except RecipeError as error:
            raise TableError(f"The plan can't be read: {error}") from error
        rows = parts.pop("entries")
        plan = cls(entries={Key(tensor, reader): entry for tensor, reader, entry in rows}, **parts)
        if len(rows) > len(plan.entries):
            twice = Counter(Key(*row[:2]) for row in rows).most_common(1)[0][0]
            raise TableError(f"The plan has two entries for {twice}; remove one of them.")
        plan.check()
        return plan

    def keep_float(self, *patterns: str) -> Plan:
        """Return a plan in which the nodes that match (a name, a glob, or ``op:TYPE``) stay in float."""
        from octavo.core import plan_edits

        return plan_edits.keep_float(self, patterns)

    def without(self, *tensors: str) -> Plan:
        """Return a plan without the entries of tensors that match (names or globs): they stay in float."""
        from octavo.core import plan_edits

        return plan_edits.without(self, tensors)

    def set(self, tensor: str, consumer: str | None = None, **settings: Unpack[Settings]) -> Plan:
        """Return a plan with other settings for the tensors that match, or for one consumer's view of them.

        ``qtype``, ``granularity``, ``symmetric``, ``method``, ``range``, ``scale`` with ``zero_point``.
        """
        from octavo.core import plan_edits

        return plan_edits.set_tensor(self, tensor, consumer, settings)

    def check(self) -> None:
        """Raise :class:`~octavo.errors.TableError` where parts of the plan contradict each other."""
        elsewhere = {one.node: "skipped" for one in self.skipped} | dict.fromkeys(self.fused, "fused")
        for name in self.nodes:
            if name in elsewhere:
                raise TableError(
                    f"The plan has {name!r} among its nodes and among those {elsewhere[name]}; remove one of"
                    " the two."
                )
        consumers = {GRAPH_OUTPUT, *self.nodes, *(one.bias_add for one in self.nodes.values())}
        for key, _ in self.edges():
            if key.consumer not in consumers:
                raise TableError(
                    f"The plan has an entry for {key}, but {key.consumer!r} is not among its nodes; add it"
                    " there, or remove all of its entries: plan.keep_float() does that."
                )
        for key, entry in self.entries.items():
            if isinstance(entry, Shared) and entry.key not in self.entries:
                raise TableError(
                    f"The plan gives {key} the parameters of {entry.key}, which has no entry; add one, or"
                    f" change that of {key}."
                )
        settled: set[Key] = set()
        for key in self.entries:
            chain: set[Key] = set()
            while key not in settled and isinstance(entry := self.entries[key], Shared):
                if key in chain:
                    self.root(key)  # says so
                chain.add(key)
                key = entry.key
            settled |= {key, *chain}

    def to_json(self) -> str:
        """Return the plan as JSON with one entry a line, so that two plans can be diffed and one edited."""
        plain = self.to_dict()
        parts = [f'"{k}": {_json(plain.pop(k))}' for k in ("octavo_plan", "style")]
        for name, group in plain.items():
            if isinstance(group, dict):
                lines = [f"{_json(k)}: {_json(v)}" for k, v in group.items()]
                opening, closing = "{", "}"
            else:
                lines = [_json(v) for v in group]
                opening, closing = "[", "]"
            body = "\n  " + ",\n  ".join(lines) + "\n" if lines else ""
            parts.append(f'"{name}": {opening}{body}{closing}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON (:meth:`to_json`)."""
        check_arguments(path=path)
        refuse_sources(self, {"path": path})
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from JSON."""
        check_arguments(path=path)
        try:
            data = json.loads(read_bytes(path, _MOST_BYTES).decode(), object_pairs_hook=unique)
        except OSError as error:
            raise TableError(unreadable("Plan", path, error)) from error
        except RepeatedNameError as error:
            raise TableError(f"Plan {path}: {error}; remove one of the two.") from error
        except (ValueError, RecursionError) as error:
            what = "is not text" if isinstance(error, UnicodeDecodeError) else f"is not JSON: {error}"
            raise TableError(
                f"Plan {path} {what}; give a file that Plan.save or 'octavo plan -o' wrote."
            ) from error
        try:
            return cls.from_dict(data)
        except TableError as error:
            raise TableError(f"Plan {path}: {error}") from error


def current_names(data: dict[str, Any]) -> dict[str, Any]:
    """Return plain data of a plan, which an earlier version may have written, under the keys of today."""
    plain = dict(codec.current_names("Plan", data))
    nodes = plain.get("nodes") or {}
    return plain | {"nodes": {name: codec.current_names("Quantized", node) for name, node in nodes.items()}}


# Operators of the runtime's domain that read integers themselves, at any opset.
_IN_BYTES = ("MatMulNBits", "GatherBlockQuantized", "DynamicQuantizeLSTM")


def _lies_in_bytes(entry: Entry, node: Quantized) -> bool:
    """Whether a weight needs no type that came with a later opset: tables of 4 bits do."""
    return node.lowering != "GatherBlockQuantized" or (
        isinstance(entry, Constant) and entry.scheme.qtype.bits == 8
    )


# What a plan file holds, key by key.
_FILE: dict[str, Any] = {
    "style": Style,
    "nodes": dict[str, Quantized],
    "entries": list[tuple[str, str | None, Entry]],
    "fused": dict[str, str],
    "skipped": tuple[Skipped, ...],
    "barriers": tuple[str, ...],
    "notes": tuple[str, ...],
    "writing": WriteOptions,
    "rounded": tuple[tuple[str, str | None], ...],
    "compressed": dict[str, Compressed],
    "half": HalfStorage | HalfCompute,
}


_MOST_BYTES = 64 << 20  # of a file that is read


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


__all__ = [
    "GRAPH_OUTPUT",
    "Bounded",
    "Compressed",
    "Constant",
    "Derived",
    "Dynamic",
    "Entry",
    "Fixed",
    "HalfCompute",
    "HalfStorage",
    "Key",
    "Measured",
    "Plan",
    "Quantized",
    "Shared",
    "Skipped",
    "current_names",
]
