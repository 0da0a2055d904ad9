"""LayerNormalization composed around two ReduceMeans, as one operator."""

from __future__ import annotations

from functools import cached_property

import onnx
from onnx import NodeProto

from octavo.model.prepare.graph_patterns import Composition
from octavo.quantization.fusions._units import units
from octavo.quantization.fusions.fusion import Fusion, Makers, Readers
from octavo.quantization.onnx_model import ONNXModel


class FusionLayerNormalization(Fusion):
    """``(x − mean) / √(variance + ε) · γ + β`` over the last axes."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "LayerNormalization", "ReduceMean")
        self._done: set[str] = set()

    @cached_property
    def _units(self) -> dict[str, Composition]:
        return units(self.model.model, self.fused_op_type)

    def fuse(
        self, reduce_mean_node: NodeProto, input_name_to_nodes: Readers, output_name_to_node: Makers
    ) -> bool:
        """Replace the normalization that a ReduceMean belongs to, if there is one; once for its two."""
        unit = self._units.get(reduce_mean_node.output[0])
        output = unit.nodes[-1].outputs[0].name or "" if unit is not None else ""
        if unit is None or output in self._done:
            return False
        self._done.add(output)
        self.nodes_to_remove += [output_name_to_node[part.outputs[0].name or ""] for part in unit.nodes]
        self.nodes_to_add.append(
            onnx.helper.make_node(
                self.fused_op_type,
                [value.name or "" for value in unit.inputs],
                [output],
                self.create_unique_node_name(),
                **unit.attributes,
            )
        )
        return True
