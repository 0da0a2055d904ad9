"""Fusions of what a matcher of the core recognizes, by the tensors that the nodes of it make."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, TypeVar

import onnx
import onnx_ir as ir
from onnx import ModelProto

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.model.prepare.fusions import MATCHERS
from octavo.model.prepare.graph_patterns import Composition, closed
from octavo.quantization.fusions.fusion import Fusion, Makers


class Nodes(Protocol):
    """What a matcher recognizes."""

    @property
    def nodes(self) -> tuple[ir.Node, ...]: ...


T = TypeVar("T", bound=Nodes)


def recognized(model: ModelProto, matcher: Callable[[ir.Node], T | None]) -> dict[str, T]:
    """Return what can be replaced, under the name of each tensor that one of its nodes makes."""
    loaded = io.load(model)
    normalize(loaded)
    shapes.infer(loaded)
    said = (matcher(node) for node in query.nodes(loaded))
    return {
        value.name or "": match
        for match in said
        if match is not None and closed(list(match.nodes))
        for node in match.nodes
        for value in node.outputs
    }


class CompositionFusion(Fusion):
    """A fusion into one node, with the inputs and attributes that the matcher says."""

    domain: str | None = None

    def matched(self, node: ir.Node) -> Composition | None:
        """Return the composition at a node, if there is one."""
        matcher = MATCHERS.get(node.op_type) if not node.domain else None
        unit = matcher(node) if matcher is not None else None
        return unit if unit is not None and unit.op_type == self.fused_op_type else None

    @cached_property
    def _compositions(self) -> dict[str, Composition]:
        return recognized(self.model.model, self.matched)

    def _replace(self, tensor: str, makers: Makers) -> bool:
        """Replace the composition that makes a tensor, if there is one; once, whichever tensor it is."""
        unit = self._compositions.get(tensor)
        result = unit.nodes[-1].outputs[0].name or "" if unit is not None else ""
        if unit is None or any(result in node.output for node in self.nodes_to_add):
            return False
        self.nodes_to_remove += [makers[part.outputs[0].name or ""] for part in unit.nodes]
        self.nodes_to_add.append(
            onnx.helper.make_node(
                self.fused_op_type,
                [value.name or "" for value in unit.inputs],
                [result],
                self.create_unique_node_name(),
                domain=self.domain,
                **unit.attributes,
            )
        )
        return True
