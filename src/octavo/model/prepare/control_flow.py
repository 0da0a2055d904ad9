"""``If``, ``Loop`` and ``Scan``: branches decided before the model runs, values handed on unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor, share_attributes

# ---- Branches that are decided before the model runs: an ``If`` whose condition is a constant
#
# Exporters write questions about ranks and sizes as ``If`` (has a batch axis? is a state given?), and
# constant folding answers most of them. The nodes of the branch that is taken move to where the ``If``
# stood, and the other branch goes, with the weights that only it read.


def has_branches(model: ir.Model) -> bool:
    """Whether there is any ``If``."""
    return any(query.is_op(node, "If") for node in query.nodes(model))


def settle_branches(model: ir.Model) -> int:
    """Put the branch that is always taken in place of every such ``If``; returns how many there were.

    One inside of another that goes is looked at when it is in place, by the next call.
    """
    found = list(_decided(model.graph))
    editor = Editor(model)
    for node, branch in found:
        _put_in_place(node, branch, editor)
    return len(found)


def _decided(graph: ir.Graph) -> Iterator[tuple[ir.Node, ir.Graph]]:
    """Yield every ``If`` that is decided, with the branch that is taken."""
    for node in graph:
        branch = _branch(node) if query.is_op(node, "If") else None
        if branch is not None and _fits(branch, node):
            yield node, branch
        else:
            for inner in query.subgraphs(node):
                yield from _decided(inner)


def _branch(node: ir.Node) -> ir.Graph | None:
    """Return the branch that is always taken, where the condition is a constant."""
    value = query.scalar(node.inputs[0]) if node.inputs else None
    if value is None:
        return None
    found = query.attribute(node, "then_branch" if value else "else_branch")
    return found if isinstance(found, ir.Graph) else None


def _fits(branch: ir.Graph, node: ir.Node) -> bool:
    """Whether the branch gives tensors, one for each result: nothing else can stand in its place."""
    kinds = [value.type for value in (*branch.outputs, *node.outputs) if value.type is not None]
    return len(branch.outputs) == len(node.outputs) and all(isinstance(k, ir.TensorType) for k in kinds)


def _put_in_place(node: ir.Node, branch: ir.Graph, editor: Editor) -> None:
    results = list(branch.outputs)
    branch.outputs.clear()
    nodes = list(branch)
    branch.remove(nodes)
    node.prepend(nodes)
    for result, old in zip(results, node.outputs, strict=True):
        name = f"{node.name}_result"
        same = editor.node("Identity", [result], name=name, output=old.name or name)
        _learn(same.outputs[0], result)
        _learn(same.outputs[0], old)
        node.prepend(same)
        editor.take_over(same.outputs[0], old)
    editor.remove([node])


# ---- Values that a ``Loop``, ``Scan`` or ``If`` hands on unchanged, read from outside instead
#
# tf2onnx and Paddle carry everything that a loop's body reads through the loop, weights included: the body
# takes ``W`` as a state and returns it through an Identity. Such a state is the same in every iteration and
# behind the loop, also where it never runs::
#
#     Loop(trip, cond, W, h; body(i, c, w, s) → (c, Identity(w), s @ w))   =   Loop(trip, cond, h; … s @ W)
#
# So the body reads ``W`` itself, the state goes, and ``W`` counts as the constant that it is. An ``If`` whose
# branches return the same outer value gives that value.

_LOOP_HEAD = 2  # the inputs of a Loop before its states: trip count and condition; its body's likewise
_SCAN_WITHOUT_BATCH = 9  # the opset from which on the states of a Scan have no batch axis of their own


def hoist_invariants(model: ir.Model) -> int:
    """Let bodies read what never changes from outside, in place; returns how many values were carried."""
    edit = Editor(model)
    count = 0
    # Inner nodes first: what an inner loop hands on may be what the outer one does.
    for node in reversed(list(query.nodes(model))):
        if query.is_op(node, "Loop"):
            count += _hoist_states(edit, node, _LOOP_HEAD, 1)
        elif query.is_op(node, "Scan") and query.opset(model) >= _SCAN_WITHOUT_BATCH:
            count += _hoist_states(edit, node, 0, 0)
        elif query.is_op(node, "If"):
            count += _hoist_results(edit, node)
    return count


def carried_weights(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Yield every constant of two axes or more that a Loop or Scan carries unchanged, with the node."""
    for node in query.nodes(model):
        body = query.attribute(node, "body") if query.is_op(node, "Loop", "Scan") else None
        if isinstance(body, ir.Graph):
            first, returned = (_LOOP_HEAD, 1) if node.op_type == "Loop" else (0, 0)
            for index in _invariant_states(node, body, first, returned):
                value = node.inputs[first + index]
                if value is not None and query.constant(value) is not None and (query.rank(value) or 0) > 1:
                    yield node, value


def _source(value: ir.Value) -> ir.Value:
    """Return the value that Identity nodes pass on."""
    while (
        query.is_op(node := value.producer(), "Identity") and node is not None and node.inputs[0] is not None
    ):
        value = node.inputs[0]
    return value


def _invariant_states(node: ir.Node, body: ir.Graph, first: int, returned: int) -> list[int]:
    """Return the states whose next value is the one they have; both have ``first`` inputs before the states.

    ``returned`` is how many outputs the body has before the states.
    """
    count = len(node.inputs) - first - query.attribute(node, "num_scan_inputs", 0)
    if len(body.inputs) != len(node.inputs) or len(body.outputs) != returned + len(node.outputs):
        return []
    found = []
    for index in range(min(count, len(node.outputs))):
        given, state = node.inputs[first + index], body.inputs[first + index]
        if given is not None and _source(body.outputs[returned + index]) in (state, given):
            found.append(index)
    return found


def _hoist_states(edit: Editor, node: ir.Node, first: int, returned: int) -> int:
    body = query.attribute(node, "body")
    found = _invariant_states(node, body, first, returned) if isinstance(body, ir.Graph) else []
    if not found:
        return 0
    results: dict[int, ir.Value] = {}
    for index in reversed(found):
        given, state = node.inputs[first + index], body.inputs[first + index]
        if given is None:
            continue
        results[index] = given
        _learn(given, state)
        body.outputs.pop(returned + index)
        for _ in range(body.outputs.count(state)):
            identity = _identity(edit, given, f"{state.name}_output")
            body.append(identity)
            body.outputs[body.outputs.index(state)] = identity.outputs[0]
        state.replace_all_uses_with(given)
        body.inputs.pop(first + index)
    inputs = [value for at, value in enumerate(node.inputs) if at - first not in results]
    _rebuild(edit, node, inputs, results)
    return len(results)


def _hoist_results(edit: Editor, node: ir.Node) -> int:
    """Take the results of an ``If`` that are the same outer value whichever branch is taken."""
    then, other = query.attribute(node, "then_branch"), query.attribute(node, "else_branch")
    if not isinstance(then, ir.Graph) or not isinstance(other, ir.Graph):
        return 0
    if not len(then.outputs) == len(other.outputs) == len(node.outputs):
        return 0
    results: dict[int, ir.Value] = {}
    for index, (one, two) in enumerate(zip(then.outputs, other.outputs, strict=True)):
        source = _source(one)
        if source is _source(two) and source.graph not in (then, other):
            results[index] = source
    for index in sorted(results, reverse=True):
        then.outputs.pop(index)
        other.outputs.pop(index)
    if results:
        _rebuild(edit, node, node.inputs, results)
    return len(results)


def _learn(given: ir.Value, state: ir.Value) -> None:
    """Keep the type or shape that is known of a state only inside of the body."""
    given.type = given.type if given.type is not None else state.type
    given.shape = given.shape if given.shape is not None else state.shape


def _identity(edit: Editor, value: ir.Value, name: str) -> ir.Node:
    node = edit.node("Identity", [value], name=name, shape=value.shape)
    node.outputs[0].type = value.type
    return node


def _rebuild(
    edit: Editor, node: ir.Node, inputs: Sequence[ir.Value | None], results: Mapping[int, ir.Value]
) -> None:
    """Put a node with these inputs, and without the outputs that ``results`` stand for, in a node's place."""
    kept = [old for index, old in enumerate(node.outputs) if index not in results]
    for index, result in results.items():
        old = node.outputs[index]
        _learn(result, old)
        if old.is_graph_output():
            identity = _identity(edit, result, f"{old.name}_Identity")
            node.prepend(identity)
            edit.take_over(identity.outputs[0], old)
        else:
            old.replace_all_uses_with(result)
    if kept:
        new = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            outputs=[ir.Value(name=old.name) for old in kept],
            name=node.name,
        )
        share_attributes(new, node)
        node.prepend(new)
        for old, value in zip(kept, new.outputs, strict=True):
            edit.take_over(value, old)
        query.attributes(node).clear()  # the bodies live on
    edit.remove([node])
