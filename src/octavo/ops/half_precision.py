"""What operators do with 16-bit floats: which of their inputs and outputs take them, and which need care.

For standard operators the ONNX schema says it; for those of the runtime's own domain there is a list.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from octavo.ops.patterns import MAKE_VALUES

CONTRIB = "com.microsoft"

# Results grow with the square, the exponential or the number of what goes in, or divide by something small:
# without calibration data nothing says that they stay within float16's range.
WIDE_RESULTS = frozenset(
    {
        "Exp", "Pow", "Log", "Reciprocal", "CumSum", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2",
        "ReduceProd", "ReduceLogSum", "ReduceLogSumExp", "Det", "GlobalLpPool", "LpPool", "LpNormalization",
        "MeanVarianceNormalization", "Softplus", "Sinh", "Cosh", "STFT", "DFT", "MelWeightMatrix",
    }
)  # fmt: skip
# Parts of a normalization that is written out, behind its squares: their mean, a small constant, the root,
# and the division by it.
NORMALIZES_BY = frozenset({"ReduceMean", "Add", "Sqrt", "Reciprocal", "Div"})
# Operators that a small constant keeps away from zero.
UNDEFINED_AT_ZERO = frozenset({"Sqrt", "Reciprocal", "Div", "Log", "Pow"})
# Operators that carry a mask from a constant to the scores that it hides.
CARRIES_MASKS = frozenset(
    {
        "Add", "Where", "Mul", "Sub", "Min", "Max", "Expand", "Slice", "Unsqueeze", "Squeeze", "Reshape",
        "Concat", "Trilu", "Cast", "Gather", "Tile", "Transpose", "ConstantOfShape", "ScatterND", "Identity",
    }
)  # fmt: skip
# Functions that repeat themselves: an error of their argument is as large in their result.
ANGLES = frozenset({"Sin", "Cos", "Tan"})
# Operators between positions or times and the angles that are made of them.
KEEPS_ANGLES = MAKE_VALUES | frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Sum", "CumSum", "Mod", "MatMul", "Gemm", "Einsum"}
)
# Operators between a logarithm and the linear layers behind it, through which small numbers stay small:
# powers of spectra, probabilities.
KEEPS_SMALL = MAKE_VALUES | frozenset(
    {
        "Mul", "Pow", "Add", "Sum", "Sqrt", "Div", "Max", "Min", "Clip", "Abs", "Relu", "Exp", "Softmax",
        "Sigmoid", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceSumSquare", "Transpose", "Reshape",
        "Flatten", "Unsqueeze", "Squeeze", "Slice", "Split", "Concat", "Gather", "Identity",
    }
)  # fmt: skip
# Operators whose result may be much smaller than what they read.
DIFFERENCES = frozenset({"Add", "Sub", "Sum"})
# Operators whose result has the type that an attribute says.
TYPED_BY_ATTRIBUTE = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "EyeLike", "Bernoulli",
     "Multinomial", "HannWindow", "HammingWindow", "BlackmanWindow", "SequenceEmpty"}
)  # fmt: skip
# Operators of the runtime's domain (or that it keeps in the default one) whose float inputs and outputs are
# all of one type, which may be float16.
CONTRIB_TAKES_HALF = frozenset(
    {
        "Attention", "BiasGelu", "BiasSplitGelu", "DecoderMaskedMultiHeadAttention",
        "EmbedLayerNormalization", "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul",
        "GatherBlockQuantized", "Gelu", "GroupNorm", "GroupQueryAttention", "MatMulNBits",
        "MultiHeadAttention", "NhwcConv", "PackedAttention", "QuickGelu", "RotaryEmbedding",
        "SimplifiedLayerNormalization", "SkipGroupNorm", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip


@dataclass(frozen=True)
class HalfSlots:
    """Which inputs and outputs of a node may be of a 16-bit float type; the last of each may repeat."""

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]

    def takes(self, index: int) -> bool:
        """Whether input ``index`` may be of the 16-bit type."""
        return bool(self.inputs) and self.inputs[min(index, len(self.inputs) - 1)]

    def gives(self, index: int) -> bool:
        """Whether output ``index`` may be of the 16-bit type."""
        return bool(self.outputs) and self.outputs[min(index, len(self.outputs) - 1)]


def half_slots(node: ir.Node, opset: int, dtype: ir.DataType) -> HalfSlots | None:
    """Return which inputs and outputs of a node may be of a 16-bit type; None for unknown operators."""
    if node.op_type in CONTRIB_TAKES_HALF and (node.domain == CONTRIB or not onnx.defs.has(node.op_type)):
        return HalfSlots((True,), (True,))
    return _standard_slots(node.op_type, opset, dtype.name.lower()) if not node.domain else None


@functools.cache
def _standard_slots(op_type: str, opset: int, type_name: str) -> HalfSlots | None:
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return None
    allowed = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}

    def may_be_half(parameter: onnx.defs.OpSchema.FormalParameter) -> bool:
        return f"tensor({type_name})" in allowed.get(parameter.type_str, ())

    return HalfSlots(tuple(map(may_be_half, schema.inputs)), tuple(map(may_be_half, schema.outputs)))
