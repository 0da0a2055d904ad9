"""Which operators stock quantizes in which format, and the name of what quantizes them there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from onnx import NodeProto

from octavo.quantization import operators
from octavo.quantization._errors import QuantizationWarning
from octavo.quantization._names import elsewhere
from octavo.quantization._types import QuantizationMode

Registry = dict[str, type[operators.QuantOperatorBase]]


def _registry(**classes: str) -> Registry:
    return {op: getattr(operators, name) for op, name in classes.items()}


CommonOpsRegistry = _registry(
    Gather="GatherQuant", Transpose="Direct8BitOp", EmbedLayerNormalization="EmbedLayerNormalizationQuant"
)

IntegerOpsRegistry: Registry = {
    **_registry(Conv="ConvInteger", MatMul="MatMulInteger", Attention="AttentionQuant", LSTM="LSTMQuant"),
    **CommonOpsRegistry,
}
"""Dynamic quantization."""

QLinearOpsRegistry: Registry = {
    **_registry(
        ArgMax="QArgMax", Conv="QLinearConv", Gemm="QLinearGemm", MatMul="QLinearMatMul",
        Add="QLinearBinaryOp", Mul="QLinearBinaryOp", Relu="QLinearActivation", Clip="QLinearActivation",
        LeakyRelu="QLinearActivation", Sigmoid="QLinearActivation", MaxPool="QMaxPool",
        GlobalAveragePool="QGlobalAveragePool", Split="QSplit", Pad="QPad", Reshape="Direct8BitOp",
        Squeeze="Direct8BitOp", Unsqueeze="Direct8BitOp", Flatten="Direct8BitOp", Resize="QResize",
        AveragePool="QLinearPool", Concat="QLinearConcat", Softmax="QLinearSoftmax", Where="QLinearWhere",
    ),
    **CommonOpsRegistry,
}  # fmt: skip
"""Static quantization, QOperator."""

QDQRegistry: Registry = _registry(
    Conv="QDQConv", ConvTranspose="QDQConv", Gemm="QDQGemm", Clip="QDQRemovableActivation",
    Relu="QDQRemovableActivation", Reshape="QDQDirect8BitOp", Transpose="QDQDirect8BitOp",
    Squeeze="QDQDirect8BitOp", Unsqueeze="QDQDirect8BitOp", Flatten="QDQDirect8BitOp", Resize="QDQResize",
    MaxPool="QDQMaxPool", AveragePool="QDQDirect8BitOp", Slice="QDQDirect8BitOp", Pad="QDQPad",
    MatMul="QDQMatMul", Split="QDQSplit", Gather="QDQGather", GatherElements="QDQGather", Where="QDQWhere",
    InstanceNormalization="QDQNormalization", LayerNormalization="QDQNormalization",
    BatchNormalization="QDQNormalization", TopK="QDQDirect8BitOp", CumSum="QDQOperatorBase",
)  # fmt: skip
"""Static quantization, QDQ: op types that have a rule of their own; any other has all floats quantized."""


def static_op_types() -> tuple[str, ...]:
    """Return the op types of static quantization where none are requested."""
    return tuple(dict.fromkeys((*QLinearOpsRegistry, *QDQRegistry)))


def dynamic_op_types() -> tuple[str, ...]:
    """Return the op types of dynamic quantization where none are requested."""
    return tuple(IntegerOpsRegistry)


def warn_of_own_rules(op_types: Iterable[str], *, stacklevel: int) -> None:
    """Warn of op types for which a caller has registered a class: it has no effect."""
    requested = set(op_types)
    for registry in (QLinearOpsRegistry, QDQRegistry, IntegerOpsRegistry):
        for op, kind in registry.items():
            if op in requested and kind.quantize is not operators.QuantOperatorBase.quantize:
                warnings.warn(
                    f"The registered class {kind.__name__} has no effect on how {op} is quantized: Octavo's"
                    " own rule holds. Choose nodes by nodes_to_exclude and tensors by TensorQuantOverrides.",
                    QuantizationWarning,
                    stacklevel=stacklevel + 1,
                )


def CreateDefaultOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> operators.QuantOperatorBase:  # noqa: N802
    """Return what stands for a node that stays as it is."""
    return operators.QuantOperatorBase(onnx_quantizer, node)


def CreateOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> operators.QuantOperatorBase:  # noqa: N802
    """Return what stands for a node in the quantizer's mode."""
    dynamic = onnx_quantizer.mode is QuantizationMode.IntegerOps
    kind = (IntegerOpsRegistry if dynamic else QLinearOpsRegistry).get(node.op_type)
    if kind is not None and (made := kind(onnx_quantizer, node)).should_quantize():
        return made
    return CreateDefaultOpQuantizer(onnx_quantizer, node)


def CreateQDQQuantizer(onnx_quantizer: Any, node: NodeProto) -> operators.QuantOperatorBase:  # noqa: N802
    """Return what stands for a node between QuantizeLinear and DequantizeLinear."""
    return QDQRegistry.get(node.op_type, operators.QDQOperatorBase)(onnx_quantizer, node)


__getattr__ = elsewhere(__name__)

__all__ = [
    "CommonOpsRegistry",
    "CreateDefaultOpQuantizer",
    "CreateOpQuantizer",
    "CreateQDQQuantizer",
    "IntegerOpsRegistry",
    "QDQRegistry",
    "QLinearOpsRegistry",
]
