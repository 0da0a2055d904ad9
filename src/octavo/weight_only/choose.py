"""Which nodes are quantized: those with a constant weight that their new operator takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from octavo.algorithms import BlockScheme
from octavo.emission import gather_blocks, nbits
from octavo.emission.block_qdq import misread
from octavo.errors import RecipeError, closest
from octavo.model import query
from octavo.weight_only.request import Selection, WeightOnly

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class Chosen:
    """A node that will be quantized, and its weight."""

    node: ir.Node
    name: str  # as the caller knows it
    weight: ir.Value
    source: ir.TensorProtocol
    inner: bool  # in a subgraph

    @property
    def dims(self) -> tuple[int, ...]:
        """The weight's shape."""
        return tuple(int(d) for d in self.source.shape.numpy())


def names(model: ir.Model) -> dict[ir.Node, str]:
    """The names of nodes before they are made unique."""
    return {node: node.name or "" for node in query.nodes(model)}


def choose(
    model: ir.Model, selection: Selection, known: Mapping[ir.Node, str]
) -> tuple[list[Chosen], dict[str, str]]:
    """The nodes to quantize, and those of the same op types that are not, with the reason."""
    chosen: list[Chosen] = []
    skipped: dict[str, str] = {}
    every: set[str] = set()
    for node in query.nodes(model):
        name = known.get(node) or node.name or ""
        every.add(name)
        if node.domain or node.op_type not in selection.ops:
            continue
        position = 0 if node.op_type == "Gather" else 1
        value = node.inputs[position]
        source = query.constant(value)
        refusal = selection.refusal(name) or _unfit(node, source)
        if refusal is not None or source is None or value is None:
            skipped[name] = refusal or "its weight is no constant"
        else:
            inner = node.graph is not model.graph
            chosen.append(Chosen(node, name, _origin(value), source, inner))
    for name in sorted((selection.include or frozenset()) - every):
        raise RecipeError(f"There is no node {name!r} to include{closest(name, every) or '.'}")
    return chosen, skipped


def _origin(value: ir.Value) -> ir.Value:
    producer = value.producer()
    while producer is not None and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def _unfit(node: ir.Node, source: ir.TensorProtocol | None) -> str | None:
    if source is None:
        return "its weight is no constant"
    if source.dtype not in _FLOATS:
        return f"its weight is of type {source.dtype.name.lower()}; float32 and float16 are taken"
    rank = len(source.shape)
    if node.op_type != "Gather" and rank != 2:
        return f"its weight has {rank} dimensions; a matrix is taken"
    return "its weight is empty" if not source.size else None


def scheme_of(item: Chosen, want: WeightOnly) -> BlockScheme | None:
    """The scheme of a node; None where it stays float."""
    return want.special.get(item.name, want.scheme)


def refused(item: Chosen, want: WeightOnly, skipped: dict[str, str]) -> bool:
    """Note a node that its own settings, or the operator that it would become, leave float."""
    scheme = scheme_of(item, want)
    reason = "left float by its own settings" if scheme is None else None
    if scheme is not None and item.node.op_type == "Gather":
        rank = len(item.dims)
        axis = want.gather_axis
        if not -rank <= axis < rank:
            reason = f"its table has no axis {axis} for blocks to run along"
        else:
            gather = int(query.attribute(item.node, "axis", 0)) % rank
            reason = gather_blocks.refusal(scheme.bits, scheme.size, rank, gather, axis % rank)
    elif scheme is not None and want.qdq and misread(item.node, scheme.bits, item.dims[1], inner=item.inner):
        fits = scheme.size in nbits.SIZES and not want.per_channel
        reason = None if fits else "neither DequantizeLinear nor MatMulNBits runs such blocks here"
    if reason is not None:
        skipped[item.name] = reason
    return reason is not None
