"""Whether a given plan belongs to this model: files are edited, and mixed up.

What a plan names has to be there, an edge has to be one, and parameters that are taken from elsewhere have to
come from an entry. All of it is looked at before anything is calibrated or written.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from octavo.core.plan import Constant, Derived, Entry, HalfCompute, HalfStorage, Key, Measured, Plan
from octavo.errors import TableError, closest
from octavo.model.graph import query
from octavo.ops import rule_of


def check_fits(model: ir.Model, plan: Plan) -> None:
    """Raise :class:`~octavo.errors.TableError` for the first thing that this model does not have."""
    nodes = {node.name or "": node for node in query.nodes(model)}
    values = query.values(model)
    for name in _named_nodes(plan):
        if name not in nodes:
            raise _missing(f"a node {name!r}", name, nodes)
    for name, quantized in plan.nodes.items():
        if nodes[name].op_type != quantized.op_type:
            raise TableError(
                f"The plan has a node {name!r} of type {quantized.op_type!r}, and the model one of type "
                f"{nodes[name].op_type!r}; {_AGAIN}"
            )
        _check_bias(nodes[name], quantized.bias_add, nodes)
    for key, entry in plan.entries.items():
        _check_key(key, nodes, values)
        _check_entry(key, entry, plan, values)
    for name in plan.compressed:
        _check_key(Key(name), nodes, values)
        if query.constant(values[name]) is None:
            raise TableError(f"The plan stores {name!r} as a weight, and the model computes it; {_AGAIN}")
    match plan.half:
        case HalfStorage(weights=weights):
            for name in weights:
                if name not in values or query.constant(values[name]) is None:
                    raise _missing(f"a weight {name!r}", name, values)
        case HalfCompute(nodes=computed):
            for name in computed:
                if name not in nodes:
                    raise _missing(f"a node {name!r}", name, nodes)
    _check_nodes(plan, nodes)
    for rounded in plan.rounded:
        if Key(*rounded) not in plan.entries:
            raise TableError(f"The plan rounds {Key(*rounded)}, which has no entry; {_AGAIN}")


def _check_nodes(plan: Plan, nodes: dict[str, ir.Node]) -> None:
    """Raise where a listed node reads nothing quantized, or one between quantized tensors is not listed."""
    said = {*plan.nodes, *plan.fused, *plan.barriers, *(one.node for one in plan.skipped)}
    said |= {one.bias_add for one in plan.nodes.values() if one.bias_add is not None}
    for name, node in nodes.items():
        read = [value for value in node.inputs if value is not None and query.is_float(value)]
        if name in plan.nodes:
            if read and not any(plan.lookup(value.name or "", name) for value in read):
                raise TableError(
                    f"The plan quantizes node {name!r}, but none of the tensors that it reads; add entries"
                    f" for them, or keep it in float: plan.keep_float({name!r})."
                )
        elif name not in said and rule_of(node) is not None:
            computed = [value for value in read if query.constant(value) is None]
            around = [*computed, *(value for value in node.outputs if query.is_float(value))]
            if computed and all(Key(value.name or "") in plan.entries for value in around):
                raise TableError(
                    f"The plan quantizes all that node {name!r} reads and gives, but does not list it; add it"
                    f" to its nodes, or keep it in float: plan.keep_float({name!r})."
                )


_AGAIN = "make a plan for this model with 'octavo plan'."


def _named_nodes(plan: Plan) -> Iterator[str]:
    yield from plan.nodes
    yield from plan.fused
    yield from plan.barriers
    yield from (node.bias_add for node in plan.nodes.values() if node.bias_add is not None)


def _check_key(key: Key, nodes: dict[str, ir.Node], values: dict[str, ir.Value]) -> None:
    if key.tensor not in values:
        raise _missing(f"a tensor {key.tensor!r}", key.tensor, values)
    if key.consumer is None:
        return
    if key.consumer not in nodes:
        raise _missing(f"a node {key.consumer!r}", key.consumer, nodes)
    if not any(value is not None and value.name == key.tensor for value in nodes[key.consumer].inputs):
        raise TableError(f"The plan has an entry for {key}, and {key.consumer!r} does not read it; {_AGAIN}")


def _check_bias(node: ir.Node, add: str | None, nodes: dict[str, ir.Node]) -> None:
    """Raise where the Add of a layer is not one that alone reads its result, beside another tensor."""
    if add is None:
        return
    read = list(nodes[add].inputs)
    fits = nodes[add].op_type == "Add" and len(read) == 2 and None not in read
    if not fits or read.count(node.outputs[0]) != 1 or query.only_reader(node.outputs[0]) is not nodes[add]:
        raise TableError(f"The plan takes {add!r} for the bias of {node.name!r}, and it is not; {_AGAIN}")


def _check_entry(key: Key, entry: Entry, plan: Plan, values: dict[str, ir.Value]) -> None:
    match entry:
        case Measured(_, of) if of is not None and of not in values:
            raise _missing(f"a tensor {of!r}", of, values)
        case Constant() if query.constant(values[key.tensor]) is None:
            raise TableError(f"The plan takes {key} for a weight, and the model computes it; {_AGAIN}")
        case Derived(x, w):
            for other in (Key(*x), Key(*w)):
                if other not in plan.entries:
                    raise TableError(
                        f"The plan derives {key} from {other}, which has no entry; add one, or change that "
                        f"of {key}."
                    )


def _missing(what: str, name: str, known: dict[str, ir.Node] | dict[str, ir.Value]) -> TableError:
    return TableError(
        f"The plan speaks of {what}, which the model does not have{closest(name, known) or '.'} A plan is for"
        " the model that it was made from; make a new one with octavo.plan."
    )
