"""OpenVINO's CPU and GPU plugins: QDQ read as FakeQuantize and lowered to 8 bits."""

from dataclasses import replace

from octavo.core.granularity import PerChannel
from octavo.core.qtypes import INT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.targets.defaults import STATIC
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI
from octavo.targets.target import Accepts, ConvPlacement, Kernels, Lowerings

_NO_DATA = Recipe(
    weights=Scheme(INT8, PerChannel(), symmetric=True), activations=None, target="openvino",
    quantize_embeddings=False,
)  # fmt: skip
_RECURRENT = dict.fromkeys(("LSTM", "GRU", "RNN"), "its weights would have to be dequantized at each run")

OPENVINO = replace(
    ORT_CPU_VNNI,
    name="openvino",
    summary="OpenVINO: uint8 (or int8) activations, symmetric int8 weights per channel, float biases, QDQ",
    static_recipe=STATIC.but(target="openvino", quantize_bias=False, quantize_embeddings=False),
    dynamic_recipe=_NO_DATA,
    accepts=Accepts(
        styles=(Style.QDQ,),
        activation_types=("uint8", "int8"),
        weight_types=("int8", "uint8", "int4", "uint4"),
        symmetric_weights=True,
        int32_biases=False,
        refused=_RECURRENT,
        contrib_ops=False,
    ),
    placement=replace(
        ORT_CPU_VNNI.placement,
        linear=frozenset({"Conv", "Gemm", "MatMul"}),
        dynamic_linear=frozenset(),
        recurrent=frozenset(),
        gates=frozenset(),
        convolutions=ConvPlacement(first_min_work=16, max_groups=4),
    ),
    kernels=Kernels(fused=ORT_CPU_VNNI.kernels.fused, rounds_float_weights=False, half_types=("float16",)),
    lowerings=Lowerings(),
    many_threads=None,
    runs_here=False,
    documentation=replace(
        ORT_CPU_VNNI.documentation,
        limits=(
            "both inputs of a product are quantized, or it runs in float",
            "weights are symmetric int8: a zero point costs a correction term for each result",
            "biases stay float: they are added to the 32-bit sum",
            "CPUs without VNNI saturate as ort-cpu-avx2 does: take that sheet's recipe there",
            "operators of com.microsoft, and …Integer operators, are read in part or not at all",
        ),
        placement=(
            "as ONNX Runtime's CPU: a conversion on the output of every Conv, behind its Relu or Clip",
            "DequantizeLinear is moved forward through linear operators and joined with the next"
            " QuantizeLinear",
        ),
        sources=(
            "OpenVINO documentation: low precision transformations, quantized models compute and"
            " restrictions",
            "run: openvino from PyPI on the zoo's CNNs",
        ),
    ),
)
