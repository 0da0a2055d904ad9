"""TensorRT, explicit quantization: symmetric int8 or float8 in front of linear operators, float elsewhere."""

from octavo.core.granularity import PerBlock, PerChannel
from octavo.core.qtypes import INT4, INT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.targets.defaults import DEFAULT_STEPS
from octavo.targets.target import Accepts, Documentation, Kernels, OpPlacement, Target

_STATIC = Recipe(
    steps=DEFAULT_STEPS,
    weights=Scheme(INT8, PerChannel(), symmetric=True),
    activations=Scheme(INT8, symmetric=True),
    target="tensorrt",
    quantize_bias=False,
    quantize_embeddings=False,
)
_NO_DATA = Recipe(
    weights=Scheme(INT4, PerBlock(128), symmetric=True), activations=None, target="tensorrt",
    quantize_embeddings=False,
)  # fmt: skip

TENSORRT = Target(
    name="tensorrt",
    summary="TensorRT: symmetric int8 (or float8) in front of Conv, Gemm and MatMul, float biases, QDQ",
    static_recipe=_STATIC,
    dynamic_recipe=_NO_DATA,
    accepts=Accepts(
        styles=(Style.QDQ,),
        activation_types=("int8", "float8e4m3fn"),
        weight_types=("int8", "float8e4m3fn", "int4"),
        block_ops=frozenset({"Gemm", "MatMul"}),
        symmetric_activations=True,
        symmetric_weights=True,
        int32_biases=False,
        op_types={"ConvTranspose": ("int8",)},
        refused={
            **dict.fromkeys(("LSTM", "GRU", "RNN"), "TensorRT takes no quantized recurrent layers"),
            "Gather": "TensorRT takes no quantized tables",
        },
        contrib_ops=False,
        newest_opset=24,
    ),
    placement=OpPlacement(
        linear=frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"}),
        kept_in_float={
            **dict.fromkeys(("LSTM", "GRU", "RNN"), "recurrent layers take no quantized weights"),
            **dict.fromkeys(("Softmax", "LayerNormalization"), "it runs in float, fused with its neighbours"),
        },
    ),
    kernels=Kernels(rounds_float_weights=False, half_types=("float16", "bfloat16")),
    documentation=Documentation(
        limits=(
            "every zero point is 0: the parser refuses another one, and uint8",
            "activations have one scale per tensor; weights one per channel (int8), per tensor"
            " (float8) or block",
            "biases stay float: an int32 bias behind DequantizeLinear is refused",
            "no DynamicQuantizeLinear, no QLinear… and no …Integer operators",
            "int8 and float8 do not mix in one network",
            "blocks have 4-bit weights alone, of 64 or 128",
        ),
        placement=(
            "QuantizeLinear and DequantizeLinear on the inputs of linear operators, as the builder"
            " expects them",
            "none between a linear operator and its bias, batch normalization or activation: they"
            " prevent fusion",
            "results stay float: the builder moves conversions on, and chooses the type of what lies between",
        ),
        preparation=("batch normalization folded", "constants computed"),
        sources=(
            "NVIDIA TensorRT documentation: Working with Quantized Types, Explicit Quantization",
            "the operator list of TensorRT's ONNX parser (10.15: opsets 9 to 24)",
            "reports of refused models: NVIDIA/TensorRT issues 1421, 2774 and 4698",
        ),
    ),
)
