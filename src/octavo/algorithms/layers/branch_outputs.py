"""Sums inside the branches of an If, as results of the main graph: a branch that does not run adds zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.model.graph.edit import Editor

_FLOAT = ir.DataType.FLOAT


class BranchOutputs:
    """Outputs that branches get for a while."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self._owners = query.conditional_graphs(editor.model)
        self._added: list[ir.Node] = []  # an If for each output that it got
        self.nodes: list[ir.Node] = []

    def lead_out(self, inner: ir.Value, graph: ir.Graph, shape: Sequence[int], name: str) -> ir.Value:
        """Return a float result of a graph as one of the main graph."""
        while (owner := self._owners[graph]) is not None:
            if owner.graph is None or not isinstance(owner.graph, ir.Graph):
                break
            for branch in query.subgraphs(owner):
                branch.outputs.append(inner if branch is graph else self._zeros(branch, shape, name))
            owner.resize_outputs(len(owner.outputs) + 1)
            inner, graph = owner.outputs[-1], owner.graph
            inner.name = self.editor.values.claim(name)
            inner.dtype, inner.shape = _FLOAT, ir.Shape(shape)
            self._added.append(owner)
        return inner

    def remove(self) -> None:
        """Take all outputs away again; the nodes that made them are the caller's to remove."""
        for owner in reversed(self._added):
            self.editor.values.taken.discard(owner.outputs[-1].name or "")
            owner.resize_outputs(len(owner.outputs) - 1)
            for branch in query.subgraphs(owner):
                branch.outputs.pop()
        self.editor.remove(reversed(self.nodes))

    def _zeros(self, branch: ir.Graph, shape: Sequence[int], name: str) -> ir.Value:
        dims = self.editor.constant(f"{name}/shape", np.array(shape, np.int64))
        made = self.editor.node("ConstantOfShape", [dims], name=f"{name}/zeros", dtype=_FLOAT)
        branch.append(made)
        self.nodes.append(made)
        return made.outputs[0]
