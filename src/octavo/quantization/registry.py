"""Which operators stock quantizes in which format, and what they become."""

from __future__ import annotations

from typing import Any

from octavo.errors import RecipeError

CommonOpsRegistry: dict[str, str] = {
    "Gather": "Gather",
    "Transpose": "Transpose",
    "EmbedLayerNormalization": "QEmbedLayerNormalization",
}

IntegerOpsRegistry: dict[str, str] = {
    "Conv": "ConvInteger",
    "MatMul": "MatMulInteger",
    "Attention": "QAttention",
    "LSTM": "DynamicQuantizeLSTM",
    **CommonOpsRegistry,
}
"""Dynamic quantization: op type → the operator that it becomes."""

QLinearOpsRegistry: dict[str, str] = {
    "ArgMax": "ArgMax",
    "Conv": "QLinearConv",
    "Gemm": "QGemm",
    "MatMul": "QLinearMatMul",
    "Add": "QLinearAdd",
    "Mul": "QLinearMul",
    "Relu": "",
    "Clip": "",
    "LeakyRelu": "QLinearLeakyRelu",
    "Sigmoid": "QLinearSigmoid",
    "MaxPool": "MaxPool",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
    "Split": "Split",
    "Pad": "Pad",
    "Reshape": "Reshape",
    "Squeeze": "Squeeze",
    "Unsqueeze": "Unsqueeze",
    "Resize": "Resize",
    "AveragePool": "QLinearAveragePool",
    "Concat": "QLinearConcat",
    "Softmax": "QLinearSoftmax",
    "Where": "QLinearWhere",
    "Flatten": "Flatten",
    **CommonOpsRegistry,
}
"""Static quantization, QOperator: op type → the operator that it becomes; a clamp goes."""

QDQRegistry: dict[str, str] = {
    op: op
    for op in (
        "Conv", "ConvTranspose", "Gemm", "Clip", "Relu", "Reshape", "Transpose", "Squeeze", "Unsqueeze",
        "Resize", "MaxPool", "AveragePool", "Slice", "Pad", "MatMul", "Split", "Gather", "GatherElements",
        "Where", "InstanceNormalization", "LayerNormalization", "BatchNormalization",
        "TopK", "CumSum", "Flatten",
    )
}  # fmt: skip
"""Static quantization, QDQ: op types that have a rule of their own; any other has all floats quantized."""


def static_op_types() -> tuple[str, ...]:
    """The op types of static quantization where none are asked for."""
    return tuple(dict.fromkeys((*QLinearOpsRegistry, *QDQRegistry)))


def dynamic_op_types() -> tuple[str, ...]:
    """The op types of dynamic quantization where none are asked for."""
    return tuple(IntegerOpsRegistry)


class NodeQuantizer:
    """How a quantizer treats one node: ``spelled`` is the operator that it becomes."""

    def __init__(self, onnx_quantizer: Any, onnx_node: Any, spelled: str | None) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node
        self.spelled = spelled
        self.disable_qdq_for_node_output = onnx_node.op_type in getattr(
            onnx_quantizer, "op_types_to_exclude_output_quantization", ()
        )

    def should_quantize(self) -> bool:
        """Whether the quantizer's arguments let the node in."""
        return bool(self.quantizer.should_quantize_node(self.node))


def CreateDefaultOpQuantizer(onnx_quantizer: Any, node: Any) -> NodeQuantizer:  # noqa: N802
    """The treatment of a node that stays as it is."""
    return NodeQuantizer(onnx_quantizer, node, node.op_type)


def CreateOpQuantizer(onnx_quantizer: Any, node: Any) -> NodeQuantizer:  # noqa: N802
    """The treatment of a node in the quantizer's mode."""
    known = QLinearOpsRegistry if getattr(onnx_quantizer, "static", True) else IntegerOpsRegistry
    if node.op_type not in known:
        return CreateDefaultOpQuantizer(onnx_quantizer, node)
    return NodeQuantizer(onnx_quantizer, node, known[node.op_type])


def CreateQDQQuantizer(onnx_quantizer: Any, node: Any) -> NodeQuantizer:  # noqa: N802
    """The treatment of a node between QuantizeLinear and DequantizeLinear."""
    if not node.op_type:
        raise RecipeError(f"The node {node.name!r} has no op type.")
    return NodeQuantizer(onnx_quantizer, node, node.op_type)


__all__ = [
    "CommonOpsRegistry",
    "CreateDefaultOpQuantizer",
    "CreateOpQuantizer",
    "CreateQDQQuantizer",
    "IntegerOpsRegistry",
    "QDQRegistry",
    "QLinearOpsRegistry",
]
