"""Compositions that Octavo recognises, by the tensors that their nodes make."""

from __future__ import annotations

from onnx import ModelProto

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.model.prepare.fusions import MATCHERS
from octavo.model.prepare.graph_patterns import Composition, closed


def units(model: ModelProto, op_type: str) -> dict[str, Composition]:
    """Return the compositions of an operator, under the name of each tensor that one of their nodes makes."""
    loaded = io.load(model)
    normalize(loaded)
    shapes.infer(loaded)
    found: dict[str, Composition] = {}
    for node in query.nodes(loaded):
        matcher = MATCHERS.get(node.op_type) if not node.domain else None
        unit = matcher(node) if matcher is not None else None
        if unit is not None and unit.op_type == op_type and closed(list(unit.nodes)):
            found.update({value.name or "": unit for part in unit.nodes for value in part.outputs})
    return found
