"""ONNX Runtime's CPU provider on x86-64 with VNNI or AMX. Measured with onnxruntime 1.31."""

from octavo.core.recipe import W8, W8A8, Style
from octavo.targets.target import Target

_SLOW = "its integer kernel is slower than float here"
_NONE = "the runtime has no integer kernel for it"

ORT_CPU = Target(
    name="ort-cpu",
    summary="ONNX Runtime, CPU provider, x86-64 with VNNI: uint8 activations, int8 weights per channel, QDQ",
    styles=(Style.QDQ, Style.QOPERATOR, Style.INTEGER),
    activation_types=("uint8", "int8", "uint16", "int16", "float8e4m3fn"),
    weight_types=("int8", "uint8", "int4", "uint4", "int16", "uint16", "float8e4m3fn"),
    static_recipe=W8A8,
    dynamic_recipe=W8,
    products=frozenset({"Conv", "Gemm", "MatMul", "Attention"}),
    dynamic_products=frozenset({"Gemm", "MatMul", "Attention"}),
    followers=frozenset({"Add", "Mul", "Concat", "Sigmoid", "HardSwish", "LeakyRelu", "GlobalAveragePool"}),
    moves=frozenset(
        {
            "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Gather",
            "GatherElements", "Expand", "Tile", "DepthToSpace", "MaxPool", "Resize", "ReduceMax", "ReduceMin",
        }
    ),
    fuses=frozenset(
        {
            "Conv", "Gemm", "MatMul", "Add", "Mul", "LeakyRelu", "Sigmoid", "Softmax", "Concat",
            "GlobalAveragePool", "AveragePool", "Where",
        }
    ),
    needs_output=frozenset({"Conv"}),
    recurrent=frozenset({"LSTM"}),
    stays_float={
        "Softmax": "QLinearSoftmax is 6 times slower than float",
        "AveragePool": _SLOW,
        "Pad": _NONE,
        "SpaceToDepth": _NONE,
        "TopK": _NONE,
        "Where": _SLOW,
        "ConvTranspose": _NONE,
        "GRU": _NONE,
        "RNN": _NONE,
        "EmbedLayerNormalization": "only its dynamic spelling has a kernel",
        **dict.fromkeys(
            ("Sub", "Div", "Min", "Max", "Tanh", "HardSigmoid", "Erf", "Gelu", "Elu", "PRelu", "ReduceMean",
             "CumSum", "BatchNormalization", "InstanceNormalization", "LayerNormalization",
             "GroupNormalization", "RMSNormalization", "SkipLayerNormalization", "GridSample",
             "Einsum", "MultiHeadAttention", "ArgMax"),
            _NONE,
        ),
    },
    dynamic_stays_float={
        "Conv": "a Conv whose input is quantized at run time is 3 to 8 times slower than float",
        "ConvTranspose": _NONE,
    },
    least_weight=64,
    least_products=16,
    block_products=True,
    most_groups=4,
    least_recurrent=1 << 16,
)  # fmt: skip
