"""Stock's classes for single operators, under their names.

Octavo decides by its op table how an operator is quantized, and no class of these is asked. They can be
imported, registered, derived from and constructed; to let one quantize its node raises.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from onnx import NodeProto, helper

from octavo.quantization._errors import UnsupportedError
from octavo.quantization._names import elsewhere


class QuantOperatorBase:
    """How a node becomes an integer operator."""

    def __init__(self, onnx_quantizer: Any, onnx_node: NodeProto) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node

    def should_quantize(self) -> bool:
        """Return whether the quantizer's arguments let the node in, and its input is a float."""
        return bool(
            self.quantizer.should_quantize_node(self.node)
            and self.quantizer.is_float_tensor(self.node.input[0])
        )

    def quantize(self) -> None:
        """Raise: single nodes are not quantized by classes here."""
        raise UnsupportedError(
            f"{type(self).__name__} can't quantize the node {self.node.name!r} by itself, as Octavo plans a"
            " model as a whole; call quantize_model(), and choose nodes by nodes_to_quantize or"
            " nodes_to_exclude and tensors by TensorQuantOverrides."
        )


class QDQOperatorBase(QuantOperatorBase):
    """How a node is put between QuantizeLinear and DequantizeLinear."""

    def __init__(self, onnx_quantizer: Any, onnx_node: NodeProto) -> None:
        super().__init__(onnx_quantizer, onnx_node)
        left_out = getattr(onnx_quantizer, "op_types_to_exclude_output_quantization", ())
        self.disable_qdq_for_node_output = onnx_node.op_type in left_out


def is_B_transposed(gemm_node: NodeProto) -> bool:  # noqa: N802
    """Return whether a Gemm reads its second input transposed."""
    return any(a.name == "transB" and helper.get_attribute_value(a) for a in gemm_node.attribute)


def get_beta(gemm_node: NodeProto) -> float:
    """Return the factor of a Gemm's third input."""
    return next((float(a.f) for a in gemm_node.attribute if a.name == "beta"), 1.0)


def set_default_beta(gemm_node: NodeProto) -> float:
    """Set the factor of a Gemm's third input to 1, where it has one, and return it."""
    for attribute in gemm_node.attribute:
        if attribute.name == "beta":
            attribute.f = 1.0
    return 1.0


_INTEGER, _QDQ = QuantOperatorBase.__name__, QDQOperatorBase.__name__
_CLASSES: dict[str, dict[str, str]] = {  # module: {class: the class it derives from}
    "base_operator": {},
    "qdq_base_operator": {},
    "activation": {"QLinearActivation": _INTEGER, "QDQRemovableActivation": _QDQ},
    "argmax": {"QArgMax": _INTEGER},
    "attention": {"AttentionQuant": _INTEGER},
    "binary_op": {"QLinearBinaryOp": _INTEGER},
    "concat": {"QLinearConcat": _INTEGER},
    "conv": {"ConvInteger": _INTEGER, "QLinearConv": _INTEGER, "QDQConv": _QDQ},
    "direct_q8": {"Direct8BitOp": _INTEGER, "QDQDirect8BitOp": _QDQ},
    "embed_layernorm": {"EmbedLayerNormalizationQuant": _INTEGER},
    "gather": {"GatherQuant": _INTEGER, "QDQGather": _QDQ},
    "gavgpool": {"QGlobalAveragePool": _INTEGER},
    "lstm": {"LSTMQuant": _INTEGER},
    "matmul": {
        "QOpMatMul": _INTEGER, "MatMulInteger": "QOpMatMul", "QLinearMatMul": "QOpMatMul", "QDQMatMul": _QDQ,
    },
    "gemm": {"QLinearGemm": "QOpMatMul", "QDQGemm": _QDQ},
    "maxpool": {"QMaxPool": "Direct8BitOp", "QDQMaxPool": "QDQDirect8BitOp"},
    "norm": {"QDQNormalization": _QDQ},
    "pad": {"QPad": _INTEGER, "QDQPad": _QDQ},
    "pooling": {"QLinearPool": _INTEGER},
    "resize": {"QResize": "Direct8BitOp", "QDQResize": "QDQDirect8BitOp"},
    "softmax": {"QLinearSoftmax": _INTEGER},
    "split": {"QSplit": _INTEGER, "QDQSplit": _QDQ},
    "where": {"QLinearWhere": _INTEGER, "QDQWhere": _QDQ},
}  # fmt: skip


def _register() -> list[str]:
    """Make the classes, and a module for each row, which finds them here; return their names."""
    own = globals()
    names = [_INTEGER, _QDQ, is_B_transposed.__name__, get_beta.__name__, set_default_beta.__name__]
    for module, classes in _CLASSES.items():
        for name, base in classes.items():
            own[name] = type(name, (own[base],), {"__module__": __name__, "__doc__": own[base].__doc__})
            names.append(name)
        made = types.ModuleType(f"{__name__}.{module}", "Names of :mod:`octavo.quantization.operators`.")
        made.__dict__["__getattr__"] = elsewhere(made.__name__)
        sys.modules[made.__name__] = made
        own[module] = made
    return names


__all__ = _register()
