"""Gelu composed around an Erf, as one operator of the domain ``com.microsoft``."""

from __future__ import annotations

from onnx import NodeProto

from octavo.quantization.fusions._compositions import CompositionFusion
from octavo.quantization.fusions.fusion import Fusion as Fusion
from octavo.quantization.fusions.fusion import Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionGelu(CompositionFusion):
    """``x · ½ · (1 + erf(x / √2))`` in any order of its factors."""

    domain: str | None = "com.microsoft"

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "Gelu", "Erf")

    def fuse(self, erf_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace the Gelu around an Erf, if there is one."""
        return self._replace(erf_node.output[0], output_name_to_node)

    fuse_1 = fuse_2 = fuse_3 = fuse  # the order of the factors makes no difference here
