"""ONNX Runtime's CPU provider on x86-64 with VNNI or AMX. Measured with onnxruntime 1.31."""

from octavo.core.recipe import W8, Style
from octavo.targets.defaults import STATIC
from octavo.targets.target import (
    Accepts,
    ConvPlacement,
    Documentation,
    Kernels,
    Lowerings,
    ManyThreads,
    OpPlacement,
    OutlierInputs,
    Target,
)

_SLOW = "its integer kernel is slower than float here"
_NONE = "the runtime has no integer kernel for it"
_EIGHT = ("uint8", "int8")
_DATA_MOVEMENT = frozenset(
    {
        "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice", "Split", "Gather",
        "GatherElements", "Expand", "Tile", "DepthToSpace", "MaxPool", "Resize", "ReduceMax", "ReduceMin",
    }
)  # fmt: skip
_FUSED = frozenset(
    {
        "Conv", "Gemm", "MatMul", "Add", "Mul", "LeakyRelu", "Sigmoid", "Softmax", "Concat",
        "GlobalAveragePool", "AveragePool", "Where",
    }
)  # fmt: skip

HARD_SWISH_RULE = (
    "HardSwish as a product of integers: its gate is its input, clipped and read with another scale"
)
GELU_RULE = "a Gelu behind integers as one operator: the runtime joins its parts only where they read float"
FLOOR_RULE = (
    "a floor under causally masked scores: their exp would be a subnormal float, which makes Softmax slow"
)
MANY_THREADS_RULE = (
    "with 12 threads and more: first layers with little work quantized too, and Add before LayerNormalization"
)

ORT_CPU_VNNI = Target(
    name="ort-cpu-vnni",
    summary="ONNX Runtime, CPU provider, x86-64 with VNNI: uint8 activations, int8 weights per channel, QDQ",
    static_recipe=STATIC.but(target="ort-cpu-vnni"),
    dynamic_recipe=W8.but(target="ort-cpu-vnni"),
    accepts=Accepts(
        styles=(Style.QDQ, Style.QOPERATOR, Style.INTEGER),
        activation_types=("uint8", "int8", "uint16", "int16", "float8e4m3fn"),
        weight_types=("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16", "float8e4m3fn"),
    ),
    placement=OpPlacement(
        linear=frozenset({"Conv", "Gemm", "MatMul", "Attention"}),
        dynamic_linear=frozenset({"Gemm", "MatMul", "Attention"}),
        elementwise=frozenset(
            {"Add", "Mul", "Concat", "Sigmoid", "HardSwish", "LeakyRelu", "GlobalAveragePool"}
        ),
        data_movement=_DATA_MOVEMENT,
        recurrent=frozenset({"LSTM"}),
        gates=frozenset({"HardSigmoid"}),
        needs_output=frozenset({"Conv"}),
        kept_in_float={
            "Softmax": "QLinearSoftmax is 6 times slower than float",
            "AveragePool": _SLOW,
            "Pad": _NONE,
            "SpaceToDepth": _NONE,
            "TopK": _NONE,
            "Where": _SLOW,
            "ConvTranspose": _NONE,
            "GRU": _NONE,
            "RNN": _NONE,
            "EmbedLayerNormalization": "only its dynamic form has a kernel",
            **dict.fromkeys(
                ("Sub", "Div", "Min", "Max", "Tanh", "HardSigmoid", "Erf", "Gelu", "Elu", "PRelu",
                 "ReduceMean", "CumSum", "BatchNormalization", "InstanceNormalization", "LayerNormalization",
                 "GroupNormalization", "RMSNormalization", "SkipLayerNormalization", "GridSample",
                 "Einsum", "MultiHeadAttention", "ArgMax"),
                _NONE,
            ),
        },
        dynamic_kept_in_float={
            "Conv": "a Conv whose input is quantized at run time is 3 to 8 times slower than float",
            "ConvTranspose": _NONE,
        },
        min_weight_size=64,
        min_recurrent_size=1 << 14,
        convolutions=ConvPlacement(
            first_min_work=16,
            large_first_min_work=32,
            output_max_work=256,
            max_groups=4,
            depthwise_min_channels=8,
            idle_depthwise_in_float=True,
        ),
    ),
    kernels=Kernels(
        integer_types={
            **dict.fromkeys(_FUSED | _DATA_MOVEMENT, _EIGHT),
            **dict.fromkeys(("Reshape", "Transpose", "Slice", "Gather"), (*_EIGHT, "uint16")),
        },
        fused=_FUSED,
        slow_behind_float=frozenset({"MaxPool"}),
        outlier_inputs=OutlierInputs.SPLIT,
        slow_activations={"int8": "x86 kernels take uint8; layers that share an int8 tensor run in float"},
        slow_weights={"uint8": "products of uint8 with uint8 take 1.5 to 2.4 times as long as with int8"},
    ),
    lowerings=Lowerings(
        sum_before=frozenset({"LayerNormalization"}),
        softmax_floor=True,
        softmax_in_parts=True,
        hard_swish_as_product=True,
        gelu_in_one=True,
        shuffle_as_gather=True,
    ),
    many_threads=ManyThreads(
        threads=12, first_min_work=0, large_first_min_work=0, sum_before=frozenset()
    ),
    runs_here=True,
    documentation=Documentation(
        limits=(
            "integer kernels take 8-bit operands; around 16-bit, 4-bit and float8 types operators run"
            " in float",
            "int32 biases have exactly the scale of the input times that of the weight: Gemm ignores"
            " another one",
            "scales per channel only along the output channels: MatMul and Gemm 1 (0 with transB), Conv 0",
            "weights in blocks of 8 bits fail beside quantized activations",
            "scales are float32: around float16 nothing is fused",
        ),
        placement=(
            "QuantizeLinear on the output of every quantized Conv, behind its Relu or Clip, also"
            " before an Add",
            "zero point at the smallest integer behind Relu and Clip",
            "a first Conv with little work per output in float where the image is large or its size is open,"
            " and a depthwise Conv behind it: quantizing the image costs more than it gains;"
            " also the third Conv of a first block whose input is added to its output",
            "a MaxPool behind a float Conv in float, with a barrier: on integers that no QLinearConv has"
            " made it takes 40 times as long",
            "a 1×1 Conv with little work that computes a model output in float: no later layer makes up for"
            " what 8 bits lose",
            "a depthwise Conv of fewer than 8 channels in float, and one from 1 channel to 1: the kernel of"
            " integers takes 8 at a time, and is 4 to 8 times slower on fewer",
            "a depthwise Conv between float operators in float: Q and DQ of two feature maps cost more than"
            " int8 gains",
            "channels exchanged between groups (Reshape, Transpose, Reshape) as one Gather",
            "HardSigmoid quantized where one result per channel scales a feature map, in float elsewhere",
            "linear layers with an int32 bias and a float output",
            "parameters shared through MaxPool, nearest Resize and data movement",
            GELU_RULE,
            "a fusion barrier at a float layer between quantized tensors: the runtime would round its"
            " weights",
            "ranges found at run time for MatMul, Gemm, Attention and LSTM only, with int8 weights",
            "a linear layer behind a gate reads its input as a high and a low part of 8 bits, scaled by row",
            "the sum in front of a LayerNormalization as Sum: the runtime fuses an Add with it, which"
            " is slower",
            HARD_SWISH_RULE,
            FLOOR_RULE,
            MANY_THREADS_RULE,
        ),
        preparation=("batch normalization folded", "constants computed", "Gelu and LayerNormalization fused"),
        sources=(
            "measured: onnxruntime 1.31 on AVX512-VNNI, 1 and 2 threads; benchmarks/placement.py, the zoo",
            "measured: onnxruntime 1.30 on AMX, 1, 4 and 16 threads; benchmarks/placement.py",
        ),
    ),
)  # fmt: skip
