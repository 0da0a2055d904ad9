"""A division by the L2 norm, as LpNormalization."""

from __future__ import annotations

import onnx_ir as ir
from onnx import NodeProto

from octavo.model.prepare.for_qnn import lp_norm
from octavo.model.prepare.graph_patterns import Composition
from octavo.quantization.fusions._compositions import CompositionFusion
from octavo.quantization.fusions.fusion import Fusion as Fusion
from octavo.quantization.fusions.fusion import Makers, Readers
from octavo.quantization.onnx_model import ONNXModel

__all__ = ["FusionLpNormalization"]


class FusionLpNormalization(CompositionFusion):
    """``x / max(‖x‖₂, ε)`` around a ReduceL2."""

    def __init__(self, model: ONNXModel, epsilon: float = 1e-12) -> None:
        super().__init__(model, "LpNormalization", "ReduceL2")
        self.epsilon = epsilon

    def matched(self, node: ir.Node) -> Composition | None:
        """Return the division at a ReduceL2, if there is one."""
        return lp_norm(node, self.epsilon)

    def fuse(self, reduce_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace the normalization around a ReduceL2, if there is one."""
        return self._replace(reduce_node.output[0], output_name_to_node)
