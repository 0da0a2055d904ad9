"""What the op-list placement does with each operator: what ONNX Runtime's own quantization does, as a table.

Code written for that finds tensors quantized, shared and left float where it expects them. In the integer
styles the rest follows from the op table: linear, elementwise and lookup operators that have a lowering.
"""

from __future__ import annotations

from enum import Enum


class Treatment(Enum):
    """How the inputs and outputs of a node are quantized in QDQ."""

    ALL = "every float input and output by a range of its own"
    WEIGHTED = "input 0 and the result by ranges, input 1 as a weight, input 2 as an int32 bias"
    PRODUCT = "the result by a range, both inputs as weights where they are constant"
    CLAMP = "fused into the quantized range of its input, or its result by a range of its own"
    MOVE = "the result with the parameters of its input, where that is quantized"
    LOOKUP = "as MOVE; a constant table is quantized in any case"
    SPLIT = "as MOVE; the input is quantized in any case"
    PAD = "as SPLIT where zeros are filled in; else the result and the fill value by ranges"
    CHOICE = "inputs 1 and 2 and the result by ranges, where both are quantized"
    FIRST = "input 0 and the result by ranges, no other input"


PAIRS: dict[str, Treatment] = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization",
         "BatchNormalization"),
        Treatment.WEIGHTED,
    ),
    **dict.fromkeys(("Relu", "Clip"), Treatment.CLAMP),
    **dict.fromkeys(
        ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "MaxPool", "AveragePool",
         "Resize", "TopK"),
        Treatment.MOVE,
    ),
    **dict.fromkeys(("Gather", "GatherElements"), Treatment.LOOKUP),
    "MatMul": Treatment.PRODUCT,
    "Split": Treatment.SPLIT,
    "Pad": Treatment.PAD,
    "Where": Treatment.CHOICE,
    "CumSum": Treatment.FIRST,
}  # fmt: skip

# Data movement that runs on integers in the QOperator style; Split quantizes its input, the others do not.
STATIC_MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Resize", "ArgMax", "Pad", "Split"}
)
# Lookups and data movement that run on integers where activations are quantized while the model runs.
DYNAMIC_MOVES = frozenset({"Gather", "Transpose"})
# Elementwise operators that are left float in the QOperator style where their input is.
NEED_INPUT = frozenset({"GlobalAveragePool"})
# The operators that the first version of that interface knows, with parameters that the caller gives.
GIVEN = ("Conv", "MatMul")
