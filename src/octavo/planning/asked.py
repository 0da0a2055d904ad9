"""What a recipe asks for by the names of tensors, beside what its op types do: entries of a listed plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from octavo.core.plan import Derived, Key, Shared
from octavo.errors import RecipeError
from octavo.model import query

if TYPE_CHECKING:
    from octavo.planning.listed import Listed


def shared(plan: Listed) -> None:
    """Tensors that are to have the parameters of another one."""
    values = _values(plan) if plan.listing.shared else {}
    for tensor, source in plan.listing.shared:
        value = values.get(tensor)
        if value is None or value in plan.level or not plan.may(value):
            continue
        if plan.activation(values.get(source)):
            plan.level.add(value)
            plan.entries[Key(tensor)] = Shared(source)


def tensors(plan: Listed) -> None:
    """Tensors that are quantized though no operator asks for it."""
    values = _values(plan) if plan.listing.tensors else {}
    for tensor in plan.listing.tensors:
        plan.activation(values.get(tensor))


def biases(plan: Listed) -> None:
    """Biases that are int32 though no operator asks for it."""
    if not plan.listing.biases:
        return
    values = _values(plan)
    nodes = {node.name: node for node in plan.all_nodes}
    for reader, bias, x, w in plan.listing.biases:
        value = _bias(nodes.get(reader), bias)
        key = Key(_name(value), reader)
        if value is None or key in plan.entries or value in plan.level or not plan.may(value):
            continue
        if values.get(x) not in plan.level or values.get(w) not in plan.level:
            raise RecipeError(
                f"The bias {bias!r} of node {reader!r} takes its scale from {x!r} and {w!r}; quantize both."
            )
        plan.entries[key] = Derived((x, None), (w, None), plan.listing.room_for_biases)


def _bias(node: ir.Node | None, bias: str) -> ir.Value | None:
    """What a node reads under this name; the copy of a bias that two layers share has a number behind it."""
    held = (
        [v for v in node.inputs if v is not None and query.constant(v) is not None]
        if node is not None
        else []
    )
    exact = (value for value in held if _name(value) == bias)
    copies = (
        value for value in held if _name(value).startswith(bias) and _name(value)[len(bias) :].isdigit()
    )
    return next(exact, None) or next(copies, None)


def _values(plan: Listed) -> dict[str, ir.Value]:
    made = (value for node in plan.all_nodes for value in node.outputs)
    graph = plan.model.graph
    return {_name(value): value for value in (*graph.inputs, *graph.initializers.values(), *made)}


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
