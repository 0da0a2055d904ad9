"""Names that are not taken yet, in one scope for the whole model; linear however many clash."""

from __future__ import annotations

import onnx_ir as ir

from octavo.model import query


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


def value_names(model: ir.Model) -> Names:
    """All value names of a model, taken."""
    names = Names()
    for graph in query.graphs(model):
        names.taken.update(value.name for value in graph.inputs if value.name)
        names.taken.update(graph.initializers)
        for node in graph:
            names.taken.update(value.name for value in node.outputs if value.name)
    return names


def node_names(model: ir.Model) -> Names:
    """All node names of a model, taken."""
    names = Names()
    for graph in query.graphs(model):
        names.taken.update(node.name for node in graph if node.name)
    return names
