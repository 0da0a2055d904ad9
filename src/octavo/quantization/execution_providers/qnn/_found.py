"""Compositions that a matcher of the core finds, by the tensor that the node searched for makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import onnx_ir as ir
from onnx import ModelProto

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes

T = TypeVar("T")


def found(model: ModelProto, matcher: Callable[[ir.Node], T | None]) -> dict[str, T]:
    """Return what the matcher says of each node that it knows, under the name of the node's first result."""
    loaded = io.load(model)
    normalize(loaded)
    shapes.infer(loaded)
    said = {node.outputs[0].name or "": matcher(node) for node in query.nodes(loaded) if node.outputs}
    return {name: match for name, match in said.items() if match is not None}
