"""A division by the L2 norm, as LpNormalization."""

from __future__ import annotations

from functools import cached_property, partial

import onnx
from onnx import NodeProto

from octavo.model.prepare.for_qnn import lp_norm
from octavo.model.prepare.graph_patterns import Composition, closed
from octavo.quantization.execution_providers.qnn._found import found
from octavo.quantization.fusions.fusion import Fusion, Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionLpNormalization(Fusion):
    """``x / max(‖x‖₂, ε)`` around a ReduceL2."""

    def __init__(self, model: ONNXModel, epsilon: float = 1e-12) -> None:
        super().__init__(model, "LpNormalization", "ReduceL2")
        self.epsilon = epsilon

    @cached_property
    def _units(self) -> dict[str, Composition]:
        return found(self.model.model, partial(lp_norm, epsilon=self.epsilon))

    def fuse(self, reduce_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace the normalization around a ReduceL2, if there is one."""
        unit = self._units.get(reduce_node.output[0])
        if unit is None or not closed(list(unit.nodes)):
            return False
        self.nodes_to_remove += [output_name_to_node[part.outputs[0].name or ""] for part in unit.nodes]
        self.nodes_to_add.append(
            onnx.helper.make_node(
                self.fused_op_type,
                [unit.inputs[0].name or ""],
                [unit.nodes[-1].outputs[0].name or ""],
                self.create_unique_node_name(),
                **unit.attributes,
            )
        )
        return True


__all__ = ["FusionLpNormalization"]
