"""Operators that queries on a graph know by name, whatever is quantized.

This is below the op table (:mod:`octavo.ops`), which asks the graph itself. What an operator is to
quantization is said there.
"""

from __future__ import annotations

from collections.abc import Callable

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"
CONVERSIONS = frozenset({QUANTIZE, DEQUANTIZE})
CONVERSIONS_OR_DYNAMIC = CONVERSIONS | {DYNAMIC_QUANTIZE}

# Control flow, and the attributes of each that hold its subgraphs.
SUBGRAPH_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "If": ("then_branch", "else_branch"),
    "Loop": ("body",),
    "Scan": ("body",),
    "SequenceMap": ("body",),
}
# Operators that draw from a generator, or may.
RANDOM = frozenset(
    {
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
        "Dropout",
    }
)  # fmt: skip
# Operators on integers, beside those whose name begins with QLinear.
INTEGER = frozenset(
    {
        "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul",
        "MatMulIntegerToFloat", "DynamicQuantizeLSTM", "QAttention", "QGemm", "QEmbedLayerNormalization",
        "QMoE", "QOrderedMatMul",
    }
)  # fmt: skip
# Operators with weights in blocks and float activations.
BLOCKWISE = frozenset({"MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
# Float operators with weights, without which there is nothing to quantize.
LAYERS = CONVOLUTIONS | {"MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "EmbedLayerNormalization"}
# Operators that bring their input to one mean or magnitude.
NORMALIZATIONS = frozenset(
    {
        "BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization",
        "LpNormalization",
    }
)  # fmt: skip
# Operators whose results are never larger than what they are made from, whatever their shape.
NO_LARGER = frozenset(
    {"Slice", "Squeeze", "Unsqueeze", "Reshape", "Flatten", "Transpose", "Identity", "Concat", "Split"}
)
# Operators whose results are as large as numbers in their inputs say.
SIZED_BY_CONSTANTS = frozenset({"ConstantOfShape", "Expand", "Range"})
# Inputs, by their place, that ONNX Runtime reads a number from without looking whether there is one:
# a constant without elements ends the process.
UNCHECKED_NUMBERS: dict[str, Callable[[int], bool]] = {
    "Loop": lambda place: place == 0,
    "OneHot": lambda place: place == 1,
    "QLinearConcat": lambda place: place % 3 != 2,
    "QLinearSoftmax": lambda place: place > 0,
    "QLinearWhere": lambda place: place not in (0, 1, 4),
}
