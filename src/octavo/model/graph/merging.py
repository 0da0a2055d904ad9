"""Two decoders in one model, as exporters merge them and transformers.js loads them.

One reads a prompt and makes the cache, the other reads a token and the cache so far. In the merged model an
``If`` chooses between them by the input ``use_cache_branch``. The main graph holds the weights, equal ones
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.files.serialize import tensor_digest
from octavo.model.graph import query
from octavo.model.graph.edit import Names
from octavo.model.graph.normalize import normalize
from octavo.model.graph.subgraph_constants import sink
from octavo.model.graph.tensors import dims_of, of_array

CACHE_BRANCH = "use_cache_branch"
_CACHE = ("past", "present")  # names of caches begin so, among inputs and among outputs
_LENGTH = 2  # the axis of tokens in a cache: batch, heads, tokens, size


def merge_decoders(first: ir.Model, later: ir.Model) -> ir.Model:
    """Return both in one model; they are used up.

    What only ``first`` returns, such as the keys of an encoder, is empty where ``later`` runs: it is what it
    was.
    """
    for model in (first, later):
        normalize(model)
    _check(first, later)
    merged = _Merged([CACHE_BRANCH, *(one.name or "" for one in first.graph.outputs)])
    outputs = [_like(one) for one in first.graph.outputs]
    returned = {one.name: one for one in later.graph.outputs}
    bodies = {
        "then_branch": merged.body(later, "with_past", [returned.get(one.name) for one in outputs], outputs),
        "else_branch": merged.body(first, "no_past", list(first.graph.outputs), outputs),
    }
    flag = ir.Value(name=CACHE_BRANCH, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
    branches = [ir.AttrGraph(name, body) for name, body in bodies.items()]
    chosen = ir.Node("", "If", [flag], branches, outputs=outputs, name="merged")
    main = ir.Graph(
        [*merged.inputs.values(), flag],
        outputs,
        nodes=[chosen],
        initializers=list(merged.weights.values()),
        name="merged",
        opset_imports={**later.opset_imports, **first.opset_imports},
    )
    made = ir.Model(main, ir_version=max(first.ir_version or 0, later.ir_version or 0))
    made.metadata_props.update(first.metadata_props)
    sink(made)
    return made


def _check(first: ir.Model, later: ir.Model) -> None:
    """Raise where the two can't stand in one model."""
    for domain, version in first.opset_imports.items():
        other = later.opset_imports.get(domain, version)
        if other != version:
            raise ModelError(f"they have the opsets {version} and {other} of {domain or 'ai.onnx'}")
    for ours, theirs in (
        (first.graph.inputs, later.graph.inputs),
        (first.graph.outputs, later.graph.outputs),
    ):
        kinds = {one.name: one.dtype for one in ours}
        if clash := [one.name for one in theirs if kinds.get(one.name, one.dtype) != one.dtype]:
            raise ModelError(f"{', '.join(map(str, clash))} has another type in each of them")
    there = {one.name for one in first.graph.outputs}
    if extra := [str(one.name) for one in later.graph.outputs if one.name not in there]:
        raise ModelError(f"only the one with a cache returns {', '.join(extra)}")


def _like(value: ir.Value) -> ir.Value:
    """A value with the name and type of another one; a cache may be empty, also one of a fixed length."""
    shape = value.shape.copy() if value.shape is not None else None
    is_cache = (value.name or "").startswith(_CACHE)
    if shape is not None and is_cache and len(shape) > _LENGTH and isinstance(shape[_LENGTH], int):
        shape[_LENGTH] = ir.SymbolicDim("cached_length")
    return ir.Value(name=value.name, type=value.type, shape=shape)


@dataclass
class _Merged:
    """What the bodies of one model have in common: inputs, weights, and names that are taken."""

    reserved: Sequence[str]
    inputs: dict[str, ir.Value] = field(default_factory=dict)
    weights: dict[tuple[bytes, ir.DataType, tuple[int, ...]], ir.Value] = field(default_factory=dict)
    values: Names = field(default_factory=Names)
    nodes: Names = field(default_factory=Names)

    def __post_init__(self) -> None:
        self.values.taken.update(self.reserved)

    def body(
        self,
        model: ir.Model,
        name: str,
        results: Sequence[ir.Value | None],
        outputs: Sequence[ir.Value],
    ) -> ir.Graph:
        """Return the graph of a model as a body, with these results; where one is None it is empty."""
        graph = model.graph
        made: list[ir.Node] = []
        returned: list[ir.Value] = []
        for value, due in zip(results, outputs, strict=True):
            if value is None:
                made.append(_empty(due))
            elif value.producer() is None or value in returned:
                made.append(ir.node("Identity", [value], name=f"{due.name}_Identity"))
                made[-1].outputs[0].type = due.type
            else:
                returned.append(value)
                continue
            returned.append(made[-1].outputs[0])
        graph.outputs.clear()
        for value in graph.inputs:
            value.replace_all_uses_with(self._input(value))
        for value in list(graph.initializers.values()):
            value.replace_all_uses_with(self._weight(value))
        graph.initializers.clear()
        graph.extend(made)
        for scope in query.graphs(model):
            self._rename(scope, inner=scope is not graph)
        nodes = list(graph)
        graph.remove(nodes)
        return ir.Graph([], returned, nodes=nodes, name=name)

    def _input(self, value: ir.Value) -> ir.Value:
        """The input of the merged model that takes the place of one of the two."""
        name = value.name or ""
        if name not in self.inputs:
            self.inputs[name] = _like(value)
            self.values.taken.add(name)
        return self.inputs[name]

    def _weight(self, value: ir.Value) -> ir.Value:
        """The weight of the merged model with the same content."""
        tensor = value.const_value
        if tensor is None:
            raise ModelError(f"the initializer {value.name!r} has no content")
        key = (tensor_digest(tensor), tensor.dtype, dims_of(tensor))
        if key not in self.weights:
            name = self.values.claim(value.name or "weight")
            tensor.name = name
            self.weights[key] = ir.Value(
                name=name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(dims_of(tensor)),
                const_value=tensor,
            )
        return self.weights[key]

    def _rename(self, graph: ir.Graph, *, inner: bool) -> None:
        """Give all values and nodes names of their own in the merged model."""
        for value in graph.inputs if inner else ():
            value.name = self.values.claim(value.name or "value")
        for node in graph:
            node.name = self.nodes.claim(node.name or node.op_type)
            for value in node.outputs:
                if value.name != "":
                    value.name = self.values.claim(value.name or "value")


def _empty(like: ir.Value) -> ir.Node:
    """A constant without a value, in the type and rank of another one."""
    dims = [dim if isinstance(dim, int) else 1 for dim in like.shape or ()]
    place = min(_LENGTH, len(dims) - 1)
    if place < 0 or like.dtype is None:
        raise ModelError(f"nothing says how large {like.name} is, which only one of them returns")
    dims[place] = 0
    try:
        array = np.zeros(dims, like.dtype.numpy())
    except ValueError as error:  # more axes than an array has, or too long ones
        raise ModelError(f"{like.name}, which only one of them returns, has an impossible shape") from error
    tensor = of_array(array, like.dtype, ir.Shape(dims), f"{like.name}_empty")
    node = ir.node("Constant", [], {"value": tensor}, name=f"{like.name}_empty")
    node.outputs[0].type = like.type
    return node
