"""Any runtime and any CPU: 7-bit weights, so that kernels that add products in 16 bits never saturate."""

from dataclasses import replace

from octavo.core.recipe import W8
from octavo.targets.defaults import STATIC
from octavo.targets.ort_cpu_avx2 import ORT_CPU_AVX2
from octavo.targets.ort_cpu_vnni import GELU_RULE, HARD_SWISH_RULE

PORTABLE = replace(
    ORT_CPU_AVX2,
    name="portable",
    summary="Correct on every CPU: as ort-cpu-avx2, with weights in 7 bits (reduced range)",
    static_recipe=STATIC.but(weights=STATIC.weights.but(reduce_range=True), target="portable"),
    dynamic_recipe=W8.but(weights=W8.weights.but(reduce_range=True), target="portable"),
    placement=replace(
        ORT_CPU_AVX2.placement,
        convolutions=replace(ORT_CPU_AVX2.placement.convolutions, idle_depthwise_in_float=False),
    ),
    lowerings=replace(ORT_CPU_AVX2.lowerings, hard_swish_as_product=False, gelu_in_one=False),
    runs_here=True,
    documentation=replace(
        ORT_CPU_AVX2.documentation,
        placement=ORT_CPU_AVX2.documentation.placement_without(GELU_RULE, HARD_SWISH_RULE),
        sources=("the intersection of the other sheets of ONNX Runtime's CPU provider",),
    ),
)
