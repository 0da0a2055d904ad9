"""A model as protobuf, looked at and edited through indices: each question costs a dictionary lookup.

For code that lives on ``ModelProto`` objects; Octavo's own works on :mod:`octavo.model.graph.edit`. Entries
of an index are checked when they are used, and the index is made again where one does not hold or nothing is
found, so that edits made elsewhere are noticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

T = TypeVar("T")


class Index(Generic[T]):
    """Items by name; ``size`` is their number, for items whose names never change elsewhere."""

    def __init__(
        self,
        items: Callable[[], Iterable[tuple[str, T]]],
        holds: Callable[[str, T], bool],
        size: Callable[[], int] | None = None,
    ) -> None:
        self._items = items
        self._holds = holds
        self._size = size
        self._known = -1
        self._found: dict[str, list[T]] | None = None

    def all(self, name: str) -> list[T]:
        """Return the items of this name, in their order."""
        found = self._found.get(name, []) if self._found is not None else []
        if self._is_stale(found) or not all(self._holds(name, item) for item in found):
            self._found = {}
            for key, item in self._items():
                self._found.setdefault(key, []).append(item)
            self._sync()
            found = self._found.get(name, [])
        return list(found)

    def _is_stale(self, found: list[T]) -> bool:
        if self._found is None:
            return True
        return not found if self._size is None else self._known != self._size()

    def _sync(self) -> None:
        self._known = self._size() if self._size is not None else -1

    def first(self, name: str) -> T | None:
        """Return the first item of this name, or None."""
        return next(iter(self.all(name)), None)

    def add(self, name: str, item: T) -> None:
        """Note a new item, or a new name of one."""
        if self._found is not None:
            self._found.setdefault(name, []).append(item)
            self._sync()

    def drop(self, name: str, item: T) -> None:
        """Note that an item is gone, or has this name no more."""
        if self._found is not None:
            self._found[name] = [other for other in self._found.get(name, ()) if other is not item]
            self._sync()

    def forget(self) -> None:
        """Make the index again when it is next asked."""
        self._found = None


def readers(graph: Callable[[], GraphProto]) -> Index[NodeProto]:
    """Return the nodes of a graph by the names that they read, each once."""
    return Index(
        lambda: ((name, node) for node in graph().node for name in dict.fromkeys(node.input) if name),
        lambda name, node: name in node.input,
    )


def makers(graph: Callable[[], GraphProto]) -> Index[NodeProto]:
    """Return the nodes of a graph by the names that they make."""
    return Index(
        lambda: ((name, node) for node in graph().node for name in node.output if name),
        lambda name, node: name in node.output,
    )


def named(items: Callable[[], Any]) -> Index[Any]:
    """Things that have a name, by it."""
    return Index(
        lambda: ((item.name, item) for item in items()),
        lambda name, item: item.name == name,
        lambda: len(items()),
    )


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node carries."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and all graphs inside it, each before those that it contains."""
    yield graph
    for node in graph.node:
        for body in bodies(node):
            yield from graphs(body)


def reads(node: NodeProto) -> dict[str, None]:
    """Return the names that a node, or a node inside it, reads from the scope of the node, in order."""
    found = {name: None for name in node.input if name}
    for body in bodies(node):
        found |= captured(body)
    return found


def captured(graph: GraphProto) -> dict[str, None]:
    """Return the names that a graph inside another takes from outside, in order."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own.update(name for node in graph.node for name in node.output)
    found = {name: None for node in graph.node for name in reads(node)}
    found |= {value.name: None for value in graph.output}
    return {name: None for name in found if name not in own}


def remove(container: Any, items: Iterable[Any]) -> int:
    """Take items out of a repeated field, by identity, or else the first that is equal; returns how many."""
    wanted = {id(item): item for item in items}
    gone = [at for at, item in enumerate(container) if wanted.pop(id(item), None) is not None]
    for at in reversed(gone):
        del container[at]
    count = len(gone)
    for item in wanted.values():
        equal = next((i for i, other in enumerate(container) if other == item), None)
        if equal is not None:
            del container[equal]
            count += 1
    return count


def rename(names: Any, old: str, new: str) -> None:
    """Write another name wherever one stands in a node's inputs or outputs."""
    for at, name in enumerate(names):
        if name == old:
            names[at] = new


def sort(graph: GraphProto) -> None:
    """Put nodes in an order in which each comes after those that it, or a graph inside it, reads from."""
    nodes = list(graph.node)
    made = {name: at for at, node in enumerate(nodes) for name in node.output if name}
    waiting = [
        {made[name] for name in reads(node) if name in made and made[name] != at}
        for at, node in enumerate(nodes)
    ]
    followers: dict[int, list[int]] = {}
    for at, before in enumerate(waiting):
        for other in before:
            followers.setdefault(other, []).append(at)
    ready = [at for at, before in enumerate(waiting) if not before]
    order: list[int] = []
    for at in ready:  # grows while it is gone through
        order.append(at)
        for other in followers.get(at, ()):
            waiting[other].discard(at)
            if not waiting[other]:
                ready.append(other)
    order += sorted(set(range(len(nodes))) - set(order))  # a cycle stays as it was
    if order != list(range(len(nodes))):
        replace_nodes(graph, [nodes[at] for at in order])


def replace_nodes(graph: GraphProto, nodes: list[NodeProto]) -> None:
    """Give a graph other nodes, some of which may be its own."""
    del graph.node[:]
    graph.node.extend(nodes)


def drop_unused_initializers(graph: GraphProto) -> set[str]:
    """Remove what nothing reads, in place, also inside nodes; returns the names taken from outside."""
    read = {value.name for value in graph.output}
    made: set[str] = set()
    for node in graph.node:
        read.update(name for name in node.input if name)
        made.update(node.output)
        for body in bodies(node):
            read.update(drop_unused_initializers(body))
    unused = [tensor for tensor in graph.initializer if tensor.name not in read]
    gone = {tensor.name for tensor in unused}
    remove(graph.initializer, unused)
    remove(graph.input, [value for value in graph.input if value.name in gone])
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return read - made - own


def all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield all stored tensors: initializers and attributes, in all scopes."""
    for inner in graphs(graph):
        yield from inner.initializer
        for attribute in (attribute for node in inner.node for attribute in node.attribute):
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors


# ---- Gemm as MatMul and Add, for integer kernels that know only the product


def split_gemms(graph: GraphProto) -> int:
    """Write each plain Gemm (``alpha = beta = 1``, A not transposed) as MatMul and Add; returns how many.

    Nodes get the names ``<name>_MatMul`` and ``<name>_Add``. A constant B that is transposed is stored so,
    under its own name where nothing else reads it.
    """
    used = Counter(name for node in graph.node for name in node.input)
    used.update(value.name for value in graph.output)
    weights = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    count = 0
    for node in graph.node:
        for body in bodies(node):
            count += split_gemms(body)
        if node.op_type == "Gemm" and not node.domain and _plain(node):
            nodes += _parts(node, graph, weights, used)
            count += 1
        else:
            nodes.append(node)
    if count:
        replace_nodes(graph, nodes)
    return count


def _attributes(node: NodeProto) -> dict[str, float]:
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **given}


def _plain(node: NodeProto) -> bool:
    values = _attributes(node)
    return values["alpha"] == 1.0 and values["beta"] == 1.0 and not values["transA"]


def _parts(
    node: NodeProto, graph: GraphProto, weights: dict[str, onnx.TensorProto], used: Counter[str]
) -> list[NodeProto]:
    a, b, *c = node.input
    before: list[NodeProto] = []
    if _attributes(node)["transB"]:
        if b in weights:
            b = _transposed(b, graph, weights, used)
        else:
            before = [onnx.helper.make_node("Transpose", [b], [f"{b}_Transposed"], f"{node.name}_Transpose")]
            b = f"{b}_Transposed"
    output = node.output[0]
    has_bias = bool(c and c[0])
    product = f"{output}_MatMul" if has_bias else output
    matmul = onnx.helper.make_node("MatMul", [a, b], [product], f"{node.name}_MatMul" if node.name else "")
    if not has_bias:
        return [*before, matmul]
    add = onnx.helper.make_node("Add", [product, c[0]], [output], f"{node.name}_Add" if node.name else "")
    return [*before, matmul, add]


def _transposed(
    name: str, graph: GraphProto, weights: dict[str, onnx.TensorProto], used: Counter[str]
) -> str:
    """Return the initializer that holds the transposed weight."""
    alone = used[name] == 1
    new = name if alone else f"{name}_Transposed"
    if not alone and new in weights:
        return new
    array = np.ascontiguousarray(np.transpose(onnx.numpy_helper.to_array(weights[name])))
    if alone:
        remove(graph.initializer, [weights[name]])
        remove(graph.input, [value for value in graph.input if value.name == name])
    graph.initializer.append(onnx.numpy_helper.from_array(array, new))
    weights[new] = graph.initializer[-1]
    return new
