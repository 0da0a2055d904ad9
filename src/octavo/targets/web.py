"""ONNX Runtime in a browser: the WebAssembly provider. From its documentation; not measured."""

from dataclasses import replace

from octavo.core.recipe import W8
from octavo.targets.defaults import STATIC
from octavo.targets.ort_cpu_avx2 import ORT_CPU_AVX2
from octavo.targets.ort_cpu_vnni import FLOOR_RULE, HARD_SWISH_RULE, MANY_THREADS_RULE

WEB = replace(
    ORT_CPU_AVX2,
    name="web",
    summary="ONNX Runtime Web, WebAssembly: uint8 activations, int8 weights in 7 bits, QDQ",
    static_recipe=STATIC.but(weights=STATIC.weights.but(reduce_range=True), target="web"),
    dynamic_recipe=W8.but(weights=W8.weights.but(reduce_range=True), target="web"),
    accepts=replace(
        ORT_CPU_AVX2.accepts,
        activation_types=("uint8", "int8"),
        weight_types=("int8", "uint8", "int4", "uint4"),
    ),
    lowerings=replace(ORT_CPU_AVX2.lowerings, softmax_floor=False, hard_swish_as_product=False),
    many_threads=None,
    runs_here=False,
    documentation=replace(
        ORT_CPU_AVX2.documentation,
        limits=(
            "relaxed SIMD multiplies 8 by 7 bits; what an eighth bit does depends on the browser",
            "one file of at most 2 GB; every byte is downloaded",
            "WebGPU and WebNN have no integer kernels of this kind: there only weights in blocks gain",
            *ORT_CPU_AVX2.documentation.limits[:3],
        ),
        placement=ORT_CPU_AVX2.documentation.placement_without(
            HARD_SWISH_RULE, FLOOR_RULE, MANY_THREADS_RULE
        ),
        sources=(
            "WebAssembly relaxed SIMD: the dot product of 8-bit by 7-bit integers",
            "onnxruntime's web documentation; not measured",
        ),
    ),
)
