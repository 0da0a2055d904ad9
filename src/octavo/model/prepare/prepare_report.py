"""What preparation changed, and what kind of model this is: that decides how it can be quantized."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.tensors import dims_of, element_type, tensor_bytes
from octavo.model.prepare.control_flow import carried_weights
from octavo.model.prepare.widen import NARROW

# ---- What preparation changed


@dataclass(frozen=True)
class Change:
    """One pass and what it did."""

    pass_name: str
    count: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.detail or self.count}"


@dataclass(frozen=True)
class PrepareReport:
    """All changes in order, and notes on what could not be done; prints as a few lines."""

    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        if not self.changes and not self.notes:
            return "nothing to prepare"
        return "\n".join([*map(str, self.changes), *(f"note: {note}" for note in self.notes)])


# ---- What kind of model this is, in one short sentence: what decides how it can be quantized


def describe_kind(model: ir.Model) -> str | None:
    """Return how a model differs from a plain float32 model, or None; it takes a model before preparation."""
    found: list[str] = []
    counts = query.classify(model)
    if counts.quantized:
        rest = f", {counts.float_weights} weights are float" if counts.float_weights else ""
        found.append(f"already quantized ({counts.quantized} integer, Quantize or Dequantize nodes{rest})")
    found += _narrow_weights(model)
    carried = Counter(node.op_type for node, _ in carried_weights(model))
    for op_type, count in carried.items():
        found.append(f"{count} weight{'s are' if count > 1 else ' is'} carried through a {op_type}")
    return "; ".join(found) or None


def _narrow_weights(model: ir.Model) -> list[str]:
    """Say of which type the weights are that are not float32, by their bytes."""
    sizes: Counter[ir.DataType] = Counter()
    for tensor in chain(query.tensors(model), query.held_tensors(model)):
        kind = element_type(tensor)
        if kind in query.FLOATS and len(dims_of(tensor)) > 1:
            sizes[kind] += tensor_bytes(tensor)
    total = sum(sizes.values())
    return [
        f"weights are {kind.name.lower()}"
        + ("" if size >= 0.995 * total else f" ({100 * size / total:.0f} % of them)")
        for kind, size in sizes.most_common()
        if kind in NARROW
    ]
