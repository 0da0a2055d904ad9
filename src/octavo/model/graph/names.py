"""Names that are not taken yet, in one scope for the whole model; linear however many clash."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model.graph import query


class Names:
    """A set of taken names that hands out free ones."""

    def __init__(self) -> None:
        self.taken: set[str] = set()
        self._next: dict[str, int] = {}

    def claim(self, name: str) -> str:
        """The name itself if it is free, else the name with the first free number."""
        free = name
        while free in self.taken:
            number = self._next.get(name, 1)
            self._next[name] = number + 1
            free = f"{name}_{number}"
        self.taken.add(free)
        return free


def taken_names(model: ir.Model) -> tuple[Names, Names]:
    """Return all names of values and of nodes of a model, taken."""
    values, nodes = Names(), Names()
    value_names, node_names = values.taken, nodes.taken
    for graph in query.graphs(model):
        value_names.update(value.name for value in graph.inputs if value.name)
        value_names.update(query.initializers(graph))
        for node in graph:
            node_names.add(node.name or "")
            for value in node.outputs:
                value_names.add(value.name or "")
    value_names.discard("")
    node_names.discard("")
    return values, nodes
