"""How a model is quantized, read off its graph: by whatever tool it was made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.core.qtypes import from_onnx
from octavo.core.shown import Shown
from octavo.model.graph import query
from octavo.model.graph.dequantized import stored_weight
from octavo.model.graph.operators import CONVERSIONS, CONVERSIONS_OR_DYNAMIC
from octavo.ops import Kind, names_of
from octavo.ops.integer_operators import INTEGER_OPERATORS, weight_slots
from octavo.reporting.text import columns, size, tally


@dataclass(frozen=True)
class StoredType:
    """An element type of initializers: how many have it, and their bytes."""

    name: str
    count: int
    bytes: int


@dataclass(frozen=True, repr=False)
class Inspection(Shown):
    """What was found; prints as a table."""

    opset: int
    ir_version: int
    style: str
    op_types: Counter[str] = field(default_factory=Counter)
    quantized_ops: Counter[str] = field(default_factory=Counter)  # run on, or between, quantized tensors
    float_ops: Counter[str] = field(default_factory=Counter)  # layers that stay in float
    weights: Counter[str] = field(default_factory=Counter)  # "int8/channel" → how many
    activations: Counter[str] = field(default_factory=Counter)
    parts: tuple[StoredType, ...] = ()
    stored: Counter[str] = field(default_factory=Counter)  # weights that the runtime restores at load

    @property
    def bytes(self) -> int:
        """Return all initializers together."""
        return sum(part.bytes for part in self.parts)

    def __str__(self) -> str:
        return inspection_table(self)

    def _line(self) -> str:
        return inspection_line(self)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "opset": self.opset,
            "ir_version": self.ir_version,
            "style": self.style,
            "bytes": self.bytes,
            **{
                n: dict(getattr(self, n))
                for n in ("op_types", "quantized_ops", "float_ops", "weights", "activations", "stored")
            },
            "parts": [{"name": p.name, "count": p.count, "bytes": p.bytes} for p in self.parts],
        }


_ALIASES = ("Transpose", "Identity")
_LAYERS = names_of(lambda rule: rule.is_linear or rule.kind is Kind.RECURRENT)


def inspect(model: ir.Model) -> Inspection:
    """Look at every node once."""
    ops: Counter[str] = Counter()
    quantized: Counter[str] = Counter()
    floats: Counter[str] = Counter()
    weights: dict[str, str] = {}
    activations: Counter[str] = Counter()
    stored: dict[str, str] = {}
    for node in query.nodes(model):
        ops[node.op_type] += 1
        if node.op_type == "DequantizeLinear":
            _weight(node, 0, 1, weights)
        elif node.op_type in CONVERSIONS_OR_DYNAMIC:
            made = query.element_type(node.outputs[0]) if node.outputs else None
            kind = made or _zero_type(node)
            dynamic = "dynamic " if node.op_type.startswith("Dynamic") else ""
            activations[f"{dynamic}{_type_name(kind)}"] += 1
        elif (slots := (0, None) if node.op_type == "Gather" else weight_slots(node.op_type)) is not None:
            _weight(node, *slots, weights)
        elif (kept := stored_weight(node)) is not None:
            stored[kept.integers.name or ""] = _type_name(query.element_type(kept.integers)) + _grain(node, 1)
        if is_quantized(node):
            quantized[node.op_type] += 1
        elif node.op_type in _LAYERS:
            floats[node.op_type] += 1
    return Inspection(
        opset=query.opset(model),
        ir_version=model.ir_version or 0,
        style=_style(ops),
        op_types=ops,
        quantized_ops=quantized,
        float_ops=floats,
        weights=Counter(weights.values()),
        activations=activations,
        parts=_parts(model),
        stored=Counter(stored.values()),
    )


def is_quantized(node: ir.Node) -> bool:
    """Whether a node runs on, or between, quantized tensors."""
    return _is_integer(node) or _reads_dequantized(node)


def _is_integer(node: ir.Node) -> bool:
    return node.op_type.startswith("QLinear") or node.op_type in INTEGER_OPERATORS


def _reads_dequantized(node: ir.Node) -> bool:
    if node.op_type in CONVERSIONS:
        return False
    producers = [v.producer() for v in node.inputs if v is not None]
    return any(p is not None and p.op_type == "DequantizeLinear" for p in producers)


def _zero_type(node: ir.Node) -> ir.DataType | None:
    return query.element_type(node.inputs[2]) if len(node.inputs) > 2 else ir.DataType.UINT8


def _type_name(kind: ir.DataType | None) -> str:
    known = from_onnx(int(kind)) if kind is not None else None
    return known.name if known is not None else str(kind).lower()


def _weight(node: ir.Node, index: int, scale: int | None, found: dict[str, str]) -> None:
    """Note the quantized constant that a node reads at ``index``, with the granularity of its scales."""
    value = query.operand(node, index)
    while value is not None and query.is_op(producer := value.producer(), *_ALIASES):
        value = producer.inputs[0] if producer is not None and producer.inputs else None
    tensor = query.constant(value)
    kind = from_onnx(int(tensor.dtype)) if tensor is not None else None
    if value is None or tensor is None or kind is None:
        return
    if node.op_type == "Gather" and (kind.bits > 8 or len(tensor.shape) != 2):
        return  # data of the model's own
    if node.op_type == "MatMulNBits":
        found[value.name or ""] = (
            f"uint{query.attribute(node, 'bits', 4)}/block:{query.attribute(node, 'block_size', 0)}"
        )
    else:
        found[value.name or ""] = kind.name + _grain(node, scale)


def _grain(node: ir.Node, scale: int | None) -> str:
    block = query.attribute(node, "block_size", 0)
    if block:
        return f"/block:{block}"
    dims = query.shape(node.inputs[scale]) if scale is not None and scale < len(node.inputs) else None
    return "/channel" if dims and int(np.prod([d or 1 for d in dims])) > 1 else ""


def _style(ops: Counter[str]) -> str:
    if any(op.startswith("QLinear") for op in ops) or "QGemm" in ops:
        return "qoperator"
    if "MatMulInteger" in ops or "ConvInteger" in ops or "DynamicQuantizeMatMul" in ops:
        return "integer"
    if "QuantizeLinear" in ops or "DequantizeLinear" in ops:
        return "qdq"
    return "weight-only" if "MatMulNBits" in ops else "float"


def _parts(model: ir.Model) -> tuple[StoredType, ...]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in (*query.tensors(model), *query.held_tensors(model)):
        name = _type_name(tensor.dtype)
        counts[name] += 1
        sizes[name] += int(tensor.nbytes)
    return tuple(StoredType(n, counts[n], b) for n, b in sizes.most_common())


# ---- The inspection as text


def inspection_line(inspection: Inspection) -> str:
    """Return how a model is quantized on one line."""
    done = tally(inspection.quantized_ops)
    kind = f"{done} quantized ({inspection.style})" if done else "float, nothing quantized"
    return f"{kind}, weights {size(inspection.bytes)}, opset {inspection.opset}"


def inspection_table(inspection: Inspection) -> str:
    """Return types, granularity, counts and sizes by part."""
    rows = [
        ["format", inspection.style],
        ["opset", f"{inspection.opset} (IR version {inspection.ir_version})"],
        ["quantized", tally(inspection.quantized_ops) or "nothing"],
        ["float layers", tally(inspection.float_ops) or "none"],
        ["weights", tally(inspection.weights) or _float_types(inspection)],
        *([["compressed", f"{tally(inspection.stored)}, dequantized at load"]] if inspection.stored else []),
        ["activations", tally(inspection.activations) or "float"],
        ["all nodes", tally(inspection.op_types)],
        ["size of weights", size(inspection.bytes)],
    ]
    blocks = [columns(rows)]
    total = inspection.bytes
    parts = [
        [part.name, part.count, size(part.bytes), f"{100 * part.bytes / total:.1f} %" if total else ""]
        for part in sorted(inspection.parts, key=lambda part: -part.bytes)
    ]
    if parts:
        blocks.append(columns(parts, ["part", "tensors", "size", "share"]))
    return "\n\n".join(blocks)


def _float_types(inspection: Inspection) -> str:
    """Return the float types of weights, the one that holds most first."""
    floats = [part for part in inspection.parts if "float" in part.name and part.bytes]
    return ", ".join(part.name for part in sorted(floats, key=lambda part: -part.bytes)) or "float"
