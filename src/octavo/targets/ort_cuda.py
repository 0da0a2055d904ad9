"""ONNX Runtime's CUDA provider: no fused 8-bit kernels; weights in 4-bit blocks are what gains."""

from octavo.core.granularity import PerBlock
from octavo.core.qtypes import INT4
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.targets.target import Accepts, Documentation, Kernels, OpPlacement, Target

_WEIGHTS = Recipe(
    weights=Scheme(INT4, PerBlock(32), symmetric=True), activations=None, target="ort-cuda",
    quantize_embeddings=False,
)  # fmt: skip
_FLOAT = "the CUDA provider computes it in float between the conversions, slower than before"

ORT_CUDA = Target(
    name="ort-cuda",
    summary="ONNX Runtime, CUDA provider: weights of linear layers in 4-bit blocks; for int8 take tensorrt",
    static_recipe=_WEIGHTS,
    dynamic_recipe=_WEIGHTS,
    accepts=Accepts(
        styles=(Style.QDQ,),
        activation_types=(),
        weight_types=("int4", "uint4", "int8", "uint8"),
        block_ops=frozenset({"MatMul"}),
    ),
    placement=OpPlacement(
        linear=frozenset({"MatMul"}),
        kept_in_float=dict.fromkeys(("Conv", "Gemm", "ConvTranspose", "LSTM", "GRU"), _FLOAT),
        min_weight_size=1 << 12,
    ),
    kernels=Kernels(rounds_float_weights=False, half_types=("float16", "bfloat16")),
    documentation=Documentation(
        limits=(
            "QuantizeLinear and DequantizeLinear run as they stand: 8-bit activations make a model slower",
            "int8 and float8 on NVIDIA hardware are for TensorRT: octavo quantize --target tensorrt",
        ),
        placement=("DequantizeLinear on the weights of MatMul, in blocks along the summed axis",),
        preparation=("constants computed",),
        sources=("onnxruntime's list of CUDA kernels and its documentation of MatMulNBits; not measured",),
    ),
)
