"""Upsample, which newer opsets lack, as Resize."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto

from octavo.quantization.fusions.fusion import Fusion, Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class ReplaceUpsampleWithResize(Fusion):
    """Writes each Upsample as the Resize of opset 11; the model is to be raised to that opset afterwards."""

    def __init__(self, model: ONNXModel, opset: int) -> None:
        super().__init__(model, "Resize", "Upsample")
        self.opset = opset

    def fuse(self, node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Replace one Upsample."""
        mode = self.get_node_attribute(node, "mode") or b"nearest"
        name = node.name or self.create_unique_node_name()
        scales = node.input[1] if len(node.input) > 1 else self._scales(node, name)
        roi = f"{name}_roi"
        self.model.add_initializer(onnx.numpy_helper.from_array(np.zeros(0, np.float32), roi))
        self.nodes_to_remove.append(node)
        self.nodes_to_add.append(
            onnx.helper.make_node(
                "Resize",
                [node.input[0], roi, scales],
                list(node.output),
                name,
                mode=mode.decode(),
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        )
        return True

    def _scales(self, node: NodeProto, name: str) -> str:
        """Return the scales as an initializer; before opset 9 they were an attribute."""
        values = self.get_node_attribute(node, "scales")
        self.model.add_initializer(
            onnx.numpy_helper.from_array(np.array(values, np.float32), f"{name}_scales")
        )
        return f"{name}_scales"
