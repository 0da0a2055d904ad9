"""Reshape, Transpose, Reshape that move blocks to channels, as SpaceToDepth."""

from __future__ import annotations

from functools import cached_property

import onnx
from onnx import NodeProto

from octavo.model.prepare.for_qnn import BlockShuffle, space_to_depth
from octavo.quantization.fusions._compositions import recognized
from octavo.quantization.fusions.fusion import Fusion, Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionSpaceToDepth(Fusion):
    """Blocks of an image, moved to its channels around a Transpose."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "SpaceToDepth", "Transpose")

    @cached_property
    def _blocks(self) -> dict[str, BlockShuffle]:
        return recognized(self.model.model, space_to_depth)

    def fuse(self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace the composition around a Transpose, if there is one."""
        blocks = self._blocks.get(node.output[0])
        if blocks is None:
            return False
        self.nodes_to_remove += [output_name_to_node[part.outputs[0].name or ""] for part in blocks.nodes]
        name, result = self.create_unique_node_name(), blocks.nodes[-1].outputs[0].name or ""
        made = result if blocks.order is None else f"{result}_blocks"
        self.nodes_to_add.append(
            onnx.helper.make_node(
                self.fused_op_type, [blocks.x.name or ""], [made], name, blocksize=blocks.size
            )
        )
        if blocks.order is not None:
            order = f"{name}_order"
            self.model.add_initializer(onnx.numpy_helper.from_array(blocks.order, order))
            self.nodes_to_add.append(
                onnx.helper.make_node("Gather", [made, order], [result], f"{name}_Gather", axis=1)
            )
        return True


__all__ = ["FusionSpaceToDepth"]
