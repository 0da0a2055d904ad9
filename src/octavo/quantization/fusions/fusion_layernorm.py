"""LayerNormalization composed around two ReduceMeans, as one operator."""

from __future__ import annotations

from onnx import NodeProto

from octavo.quantization.fusions._compositions import CompositionFusion
from octavo.quantization.fusions.fusion import Fusion as Fusion
from octavo.quantization.fusions.fusion import Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionLayerNormalization(CompositionFusion):
    """``(x − mean) / √(variance + ε) · γ + β`` over the last axes."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "LayerNormalization", "ReduceMean")

    def fuse(
        self, reduce_mean_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> bool:
        """Replace the normalization that a ReduceMean belongs to, if there is one."""
        return self._replace(reduce_mean_node.output[0], output_name_to_node)
