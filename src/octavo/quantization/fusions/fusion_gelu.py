"""Gelu composed around an Erf, as one operator of the domain ``com.microsoft``."""

from __future__ import annotations

from functools import cached_property

import onnx
from onnx import NodeProto

from octavo.model.prepare.graph_patterns import Composition
from octavo.quantization.fusions._units import units
from octavo.quantization.fusions.fusion import Fusion, Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionGelu(Fusion):
    """``x · ½ · (1 + erf(x / √2))`` in any order of its factors."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "Gelu", "Erf")

    @cached_property
    def _units(self) -> dict[str, Composition]:
        return units(self.model.model, self.fused_op_type)

    def fuse(self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace the Gelu around an Erf, if there is one."""
        unit = self._units.get(erf_node.output[0])
        if unit is None:
            return False
        self.nodes_to_remove += [output_name_to_node[part.outputs[0].name or ""] for part in unit.nodes]
        self.nodes_to_add.append(
            onnx.helper.make_node(
                self.fused_op_type,
                [value.name or "" for value in unit.inputs],
                [unit.nodes[-1].outputs[0].name or ""],
                self.create_unique_node_name(),
                domain="com.microsoft",
            )
        )
        return True

    def fuse_1(self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """The same: the order of the factors makes no difference here."""
        return self.fuse(erf_node, input_name_to_nodes, output_name_to_node)

    fuse_2 = fuse_1
    fuse_3 = fuse_1
