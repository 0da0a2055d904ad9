"""Sets of operators by which structures in a graph are recognized, each with what its members share."""

from __future__ import annotations

# Cast, views and scalings between the scores of an attention head and its Softmax: they keep scores apart.
KEEP_SCORES = frozenset({"Cast", "Reshape", "Transpose", "Identity", "Expand", "Max", "Clip", "Div", "Mul"})
# Operators that can mix a mask into scores.
MASK_SCORES = frozenset({"Add", "Where", "Sub", "Max", "Min"})
# Comparisons of positions, of which causal masks are made.
COMPARE_POSITIONS = frozenset({"Trilu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
# Operators between such a comparison, or a constant, and the mask that is made of it.
MAKE_MASKS = frozenset(
    {
        "Slice", "Gather", "Unsqueeze", "Squeeze", "Expand", "Reshape", "Cast", "Identity", "Transpose",
        "Where", "Mul", "Sub", "Add", "And", "Or", "Not", "Concat", "Tile", "ScatterND",
    }
)  # fmt: skip
# Operators between the layers that feed a gate and its product: the gate's function, and how it is composed.
MAKE_GATES = frozenset({"Mul", "Sigmoid", "Gelu", "Add", "Relu", "Tanh", "Erf", "Div"})
# The operator in the middle of a Gelu that is written in parts, and the one that joins them.
GELU_CORES = {"Erf": "Gelu", "Tanh": "FastGelu"}
# Views, and the joins with earlier keys and values, between a linear layer and the attention that reads it.
MAKE_VALUES = frozenset(
    {"Reshape", "Transpose", "Expand", "Unsqueeze", "Squeeze", "Slice", "Identity", "Add", "Concat"}
)
# Operators between a Softmax and the product that its probabilities weigh.
KEEP_PROBABILITIES = frozenset({"Cast", "Reshape", "Transpose", "Identity", "Dropout"})
# Functions f with f(s·x) = s·f(x) for s > 0, so that factors of channels can be moved through them.
HOMOGENEOUS = frozenset({"Relu", "LeakyRelu", "PRelu"})
# Operators with one input that keep such factors, and whose results have the channels of the input last.
KEEP_FACTORS = frozenset({"Relu", "LeakyRelu", "Identity", "Dropout"})
# Operators that keep values in their channel.
KEEP_CHANNELS = frozenset({"MaxPool", "Resize", "Identity", "Dropout"})
# Data movement between class scores and the Sigmoid that ends them.
MOVE_SCORES = frozenset(
    {"Reshape", "Transpose", "Concat", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity"}
)
# Normalizations, and their inputs that scale and shift the result per channel of the last axis.
NORMALIZATIONS: dict[str, tuple[int, ...]] = {
    "LayerNormalization": (1, 2),
    "RMSNormalization": (1,),
    "SimplifiedLayerNormalization": (1,),
    "SkipLayerNormalization": (2, 3),
    "SkipSimplifiedLayerNormalization": (2,),
}
# Sums of squares, of which a magnitude is the root.
SUMS = frozenset({"Add", "ReduceSum"})
SQUARES = frozenset({"Pow", "ReduceSumSquare"})
# Functions of a sum of squares that give the magnitudes of a spectrum, and what keeps a logarithm finite.
MAGNITUDE_ROOTS = frozenset({"Sqrt", "Log"})
MAGNITUDE_FLOORS = frozenset({"Clip", "Max"})
# Operators that join the real and the imaginary part.
COMPLEX_PARTS = frozenset({"Concat", "Neg"})
# Products and quotients, with a constant.
SCALINGS = frozenset({"Mul", "Div"})
# Operators that compute nothing on floats that a user would look for among those kept in float.
BOOKKEEPING = frozenset(
    {
        "Cast", "Constant", "ConstantOfShape", "Shape", "QuantizeLinear", "DequantizeLinear", "If", "Loop",
        "Scan",
    }
)  # fmt: skip
# Operators that make no NaN of finite numbers, as long as nothing overflows.
CANNOT_MAKE_NAN = frozenset(
    {
        "Abs", "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "ConvTranspose",
        "DepthToSpace", "Elu", "Erf", "Expand", "Flatten", "Gather", "Gelu", "Gemm", "GlobalAveragePool",
        "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LayerNormalization", "LeakyRelu", "MatMul",
        "Max", "MaxPool", "Min", "Mish", "Mul", "Neg", "PRelu", "Pad", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceSum", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Softmax", "Softplus", "SpaceToDepth",
        "Split", "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze",
    }
)  # fmt: skip
# Operators that make a feature map of a feature map.
KEEP_FEATURE_MAPS = frozenset(
    {
        "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Div", "Elu", "Erf", "Gelu",
        "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LeakyRelu", "Max", "MaxPool", "Min",
        "Mish", "Mul", "PRelu", "Pad", "Relu", "Resize", "Sigmoid", "Softplus", "Sub", "Sum", "Tanh",
    }
)  # fmt: skip
# Operators whose operands can be exchanged.
COMMUTE = frozenset({"Add", "Mul", "Max", "Min", "Sum"})
# Operators between logits and the output of a model.
FOLLOW_LOGITS = frozenset({"Cast", "Mul", "Div", "Add", "Sub", "Tanh", "Softmax", "LogSoftmax", "Identity"})
# Operators that turn scores into probabilities, or their logarithm.
MAKE_PROBABILITIES = frozenset({"Softmax", "LogSoftmax"})
# Attention with a key-value cache, which may have few bits.
CACHED_ATTENTION = "GroupQueryAttention"
# What reads the shape of a value, and none of its numbers.
READ_SHAPES = frozenset({"Shape", "Size"})
# What reads a value that is multiplied by its own sigmoid.
READ_SILU = ("Mul", "Sigmoid")
