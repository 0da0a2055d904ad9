"""Model-local functions written out where they are called, in time linear in the result.

A call is replaced by a copy of the function's nodes: inputs by the call's operands, attribute parameters by
the call's values or the function's defaults, outputs under the names that the call gave them. The pass of
onnx-ir looks for each free name from 1 on, so its time is quadratic: for 5000 calls 9.6 s, and here 0.6 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph.meta import describe
from octavo.model.graph.query import subgraphs
from octavo.model.graph.scopes import detach

MOST_NODES = 500_000  # of a model, written out: a few functions can describe more than memory holds
_MAX_DEPTH = 200  # of calls within calls; exporters nest modules a dozen deep

Key = tuple[str, str, str]  # domain, name and overload of a function


def inline_functions(model: ir.Model) -> int:
    """Write out every call in every scope; returns how many there were."""
    if not model.functions:
        return 0
    check_functions(model)
    functions = dict(model.functions)
    stack = [node for node in model.graph.all_nodes() if node.op_identifier() in functions]
    count = 0
    while stack:
        call = stack.pop()
        made = _inline(model, call, functions[call.op_identifier()])
        count += 1
        stack.extend(node for node in _all(made) if node.op_identifier() in functions)
    model.functions.clear()
    for domain in {key[0] for key in functions} - {node.domain for node in model.graph.all_nodes()}:
        model.opset_imports.pop(domain, None)
    return count


def _all(nodes: Iterable[ir.Node]) -> Iterable[ir.Node]:
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from graph.all_nodes()


def _label(key: Key) -> str:
    return f"{key[0]}::{key[1]}" + (f":{key[2]}" if key[2] else "")


def check_functions(model: ir.Model) -> None:
    """Refuse functions of a model in memory that can't be written out: see :func:`check_calls`."""
    if model.functions:
        functions = {
            key: (len(function), [node.op_identifier() for node in function.all_nodes()])
            for key, function in model.functions.items()
        }
        check_calls(functions, (node.op_identifier() for node in model.graph.all_nodes()), describe(model))


def check_calls(functions: Mapping[Key, tuple[int, list[Key]]], used: Iterable[Key], where: str) -> None:
    """Refuse functions that call themselves, or each other too deep or too often to be written out.

    ``functions`` are their numbers of nodes and the operators of those, ``used`` the main graph's operators.
    """
    sizes: dict[Key, int] = {}
    callees = {key: [call for call in calls if call in functions] for key, (_, calls) in functions.items()}
    for start in functions:
        path: dict[Key, None] = {}
        stack: list[tuple[Key, bool]] = [(start, False)]
        while stack:
            key, done = stack.pop()
            if done:
                sizes[key] = functions[key][0] + sum(sizes[callee] for callee in callees[key])
                path.pop(key)
            elif key in path:
                raise ModelError(
                    f"{where}: the model-local function {_label(key)} calls itself, which ONNX forbids; "
                    "export the model again."
                )
            elif key not in sizes:
                path[key] = None
                if len(path) > _MAX_DEPTH:
                    raise ModelError(
                        f"{where}: model-local functions call each other more than {_MAX_DEPTH} deep."
                    )
                stack.append((key, True))
                stack.extend((callee, False) for callee in dict.fromkeys(callees[key]))
    total = sum(sizes.get(key, 0) for key in used)
    if total > MOST_NODES:
        raise ModelError(
            f"{where}: its model-local functions unfold to {total} nodes, and {MOST_NODES} are the most that "
            "are read; export the model without them, or in parts."
        )


def _inline(model: ir.Model, call: ir.Node, function: ir.Function) -> list[ir.Node]:
    """Put a copy of the function's nodes in the place of a call; returns them."""
    _check_call(model, call, function)
    try:
        body = function.clone()
    except RuntimeError as error:  # what onnx-ir makes of all that stops it
        raise ModelError(
            f"The model-local function {_label(function.identifier())} is malformed: its nodes read tensors "
            "that it does not define; export the model again."
        ) from error
    nodes, parameters, results = list(body), list(body.inputs), list(body.outputs)
    body.graph.remove(nodes)
    body.inputs.clear()
    body.outputs.clear()
    _bind_attributes(nodes, {**_defaults(function), **call.attributes})
    for node in _all(nodes):
        for value in node.outputs:
            if isinstance(value.type, ir.TensorType):
                value.type = ir.TensorType(value.type.dtype)  # copies share their types
        if call.name and node.name:
            node.name = f"{call.name}/{node.name}"
    operands: dict[ir.Value, ir.Value | None] = dict.fromkeys(parameters)
    operands.update(zip(parameters, call.inputs, strict=False))
    for parameter, operand in operands.items():
        for user, index in parameter.uses():
            user.replace_input_with(index, operand)
    nodes.extend(_results(call, [operands.get(value, value) for value in results], set(nodes)))
    call.prepend(nodes)
    detach(call)
    if call.graph is not None:
        call.graph.remove(call)
    return nodes


def _results(call: ir.Node, results: list[ir.Value | None], inside: set[ir.Node]) -> list[ir.Node]:
    """Let each result stand under the call's name for it; one not made by the body goes via Identity."""
    extra: list[ir.Node] = []
    taken: set[ir.Value] = set()
    for old, new in zip(call.outputs, results, strict=False):
        if not old.name or not (old.uses() or old.is_graph_output()):
            continue
        if new is None:
            raise ModelError(f"The call {call.name!r} uses a result that is an input it does not give.")
        if new.producer() not in inside or new in taken:
            identity = ir.Node("", "Identity", [new], outputs=[ir.Value(name=old.name)])
            extra.append(identity)
            new = identity.outputs[0]
        taken.add(new)
        new.type, new.shape = new.type or old.type, new.shape or old.shape
        name, old.name = old.name, f"{old.name}__call"
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name = name
    return extra


def _defaults(function: ir.Function) -> dict[str, ir.Attr]:
    return {name: a for name, a in function.attributes.items() if a.value is not None}


def _check_call(model: ir.Model, call: ir.Node, function: ir.Function) -> None:
    where = f"The model-local function {_label(function.identifier())}"
    for domain, version in function.opset_imports.items():
        domain = "" if domain == "ai.onnx" else domain
        if model.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"{where} is written for opset {version} of {domain or 'ai.onnx'!r} and the model for "
                f"{model.opset_imports[domain]}; inline it with onnx.inliner, or export the model again."
            )
    if len(call.inputs) > len(function.inputs):
        raise ModelError(f"{where} takes {len(function.inputs)} inputs and is given {len(call.inputs)}.")
    if len(call.outputs) > len(function.outputs):
        raise ModelError(f"{where} has {len(function.outputs)} outputs, and {len(call.outputs)} are read.")
    if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in call.attributes.values()):
        raise ModelError(f"{where} takes a graph as a parameter, which is not supported.")


def _bind_attributes(nodes: Iterable[ir.Node], given: Mapping[str, ir.Attr]) -> None:
    """Put values in the place of attribute parameters; one without a value leaves its attribute out."""
    for node in _all(nodes):
        for name, attribute in list(node.attributes.items()):
            if not attribute.is_ref():
                continue
            value = given.get(attribute.ref_attr_name or "")
            if value is None:
                node.attributes.pop(name)
            else:
                node.attributes[name] = ir.Attr(name, value.type, value.value)
