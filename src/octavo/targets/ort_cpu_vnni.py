"""ONNX Runtime's CPU provider on x86-64 with VNNI or AMX. Measured with onnxruntime 1.31."""

from octavo.core.recipe import W8, Style
from octavo.targets.defaults import STATIC
from octavo.targets.target import Target

_SLOW = "its integer kernel is slower than float here"
_NONE = "the runtime has no integer kernel for it"
_EIGHT = ("uint8", "int8")
_MOVES = frozenset(
    {
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Gather",
        "GatherElements", "Expand", "Tile", "DepthToSpace", "MaxPool", "Resize", "ReduceMax", "ReduceMin",
    }
)  # fmt: skip
_FUSES = frozenset(
    {
        "Conv", "Gemm", "MatMul", "Add", "Mul", "LeakyRelu", "Sigmoid", "Softmax", "Concat",
        "GlobalAveragePool", "AveragePool", "Where",
    }
)  # fmt: skip

HARD_SWISH = "HardSwish as a product of integers: its gate is its input, cut off and read by another scale"
FLOOR = "a floor under causally masked scores: exp of them would be no normal float, and Softmax slow"
MANY = "with 12 threads and more: thin first layers quantized too, and Add before LayerNormalization"

ORT_CPU_VNNI = Target(
    name="ort-cpu-vnni",
    summary="ONNX Runtime, CPU provider, x86-64 with VNNI: uint8 activations, int8 weights per channel, QDQ",
    styles=(Style.QDQ, Style.QOPERATOR, Style.INTEGER),
    activation_types=("uint8", "int8", "uint16", "int16", "float8e4m3fn"),
    weight_types=("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16", "float8e4m3fn"),
    static_recipe=STATIC.but(target="ort-cpu-vnni"),
    dynamic_recipe=W8.but(target="ort-cpu-vnni"),
    products=frozenset({"Conv", "Gemm", "MatMul", "Attention"}),
    dynamic_products=frozenset({"Gemm", "MatMul", "Attention"}),
    followers=frozenset({"Add", "Mul", "Concat", "Sigmoid", "HardSwish", "LeakyRelu", "GlobalAveragePool"}),
    moves=_MOVES,
    fuses=_FUSES,
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
    large_products=32,
    answer_products=256,
    idle_depthwise=True,
    block_products=True,
    two_passes=True,
    most_groups=4,
    least_recurrent=1 << 14,
    slow_with_add=frozenset({"LayerNormalization"}),
    softmax_spelled=True,
    softmax_floored=True,
    gates=frozenset({"HardSigmoid"}),
    hard_swish_gated=True,
    shuffles_gathered=True,
    many_threads=12,
    with_many={"least_products": 0, "large_products": 0, "slow_with_add": frozenset()},
    kernels={
        **dict.fromkeys(_FUSES | _MOVES, _EIGHT),
        **dict.fromkeys(("Reshape", "Transpose", "Slice", "Gather"), (*_EIGHT, "uint16")),
    },
    runs_here=True,
    slow_activations={"int8": "x86 kernels take uint8; layers that share an int8 tensor run in float"},
    slow_weights={"uint8": "products of uint8 with uint8 take 1.5 to 2.4 times as long as with int8"},
    limits=(
        "integer kernels take 8-bit operands; around 16-bit, 4-bit and float8 types operators run in float",
        "int32 biases have exactly the scale of the input times that of the weight: Gemm ignores another one",
        "scales per channel only along the output channels: MatMul and Gemm 1 (0 with transB), Conv 0",
        "weights in blocks of 8 bits fail beside quantized activations",
        "scales are float32: around float16 nothing is fused",
    ),
    placement=(
        "QuantizeLinear on the output of every quantized Conv, behind its Relu or Clip, also before an Add",
        "zero point at the smallest integer behind Relu and Clip",
        "a first Conv of few products in float, of a large picture or one of open size, and a depthwise one"
        " behind it: Q of a picture costs more;"
        " so is the third Conv of a first block whose input is added to its result",
        "a 1×1 Conv of few products that gives the answers of a map in float: nothing behind it makes up for"
        " what 8 bits lose",
        "a depthwise Conv in float that reads and gives what float operators make and read: Q and DQ of two"
        " maps cost more than it gains",
        "channels exchanged between groups (Reshape, Transpose, Reshape) as one Gather",
        "HardSigmoid quantized where one result a channel scales a picture, and float elsewhere",
        "linear layers with an int32 bias and a float result",
        "parameters shared through MaxPool, nearest Resize and data movement",
        "a layer that stays float between quantized values is guarded: the runtime would round its weights",
        "ranges found at run time for MatMul, Gemm, Attention and LSTM only, with int8 weights",
        "a linear layer behind a gate reads its input in two passes of 8 bits, each row by its own scale",
        "the sum in front of a LayerNormalization as Sum: the runtime joins an Add with it, and is slower so",
        HARD_SWISH,
        FLOOR,
        MANY,
    ),
    preparation=("batch normalization folded", "constants computed", "Gelu and LayerNormalization as one"),
    sources=(
        "measured: onnxruntime 1.31 on AVX512-VNNI, 1 and 2 threads; benchmarks/placement.py, the zoo",
        "measured: onnxruntime 1.30 on AMX, 1, 4 and 16 threads; benchmarks/placement.py",
    ),
)  # fmt: skip
