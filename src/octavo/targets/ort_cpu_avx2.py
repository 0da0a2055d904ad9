"""ONNX Runtime's CPU provider on x86-64 without VNNI: pairs of uint8 × int8 products are added in 16 bits."""

from dataclasses import replace

from octavo.core.recipe import W8
from octavo.targets.defaults import STATIC
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI

ORT_CPU_AVX2 = replace(
    ORT_CPU_VNNI,
    name="ort-cpu-avx2",
    summary="ONNX Runtime, CPU provider, x86-64 without VNNI: as ort-cpu-vnni, with weights in 7 bits",
    static_recipe=STATIC.but(weights=STATIC.weights.but(reduce_range=True), target="ort-cpu-avx2"),
    dynamic_recipe=W8.but(weights=W8.weights.but(reduce_range=True), target="ort-cpu-avx2"),
    kernels=replace(ORT_CPU_VNNI.kernels, saturates=True, slow_weights={}),
    documentation=replace(
        ORT_CPU_VNNI.documentation,
        limits=(
            *ORT_CPU_VNNI.documentation.limits,
            "255 × 64 × 2 fits 16 bits and 255 × 127 × 2 does not: int8 weights use -64 … 64, or are uint8",
        ),
        sources=(
            "AVX2 and AVX512 without VNNI: vpmaddubsw adds two products and saturates at 16 bits",
            "onnxruntime's documentation on the choice of data types; saturation emulated, not run",
        ),
    ),
)
