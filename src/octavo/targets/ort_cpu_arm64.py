"""ONNX Runtime's CPU provider on 64-bit ARM. From its documentation and source; not measured."""

from dataclasses import replace

from octavo.core.qtypes import INT8
from octavo.core.recipe import W8, DynamicScheme
from octavo.core.scheme import Scheme
from octavo.targets.defaults import STATIC
from octavo.targets.ort_cpu_vnni import FLOOR_RULE, HARD_SWISH_RULE, MANY_THREADS_RULE, ORT_CPU_VNNI

ORT_CPU_ARM64 = replace(
    ORT_CPU_VNNI,
    name="ort-cpu-arm64",
    summary="ONNX Runtime, CPU provider, 64-bit ARM: int8 activations, int8 weights per channel, QDQ",
    static_recipe=STATIC.but(activations=Scheme(INT8), target="ort-cpu-arm64"),
    dynamic_recipe=W8.but(activations=DynamicScheme(), target="ort-cpu-arm64"),
    placement=replace(
        ORT_CPU_VNNI.placement,
        convolutions=replace(ORT_CPU_VNNI.placement.convolutions, idle_depthwise_in_float=False),
    ),
    kernels=replace(
        ORT_CPU_VNNI.kernels,
        slow_activations={},
        slow_weights={"uint8": "kernels for weights with zero point 0 are left aside"},
    ),
    lowerings=replace(ORT_CPU_VNNI.lowerings, softmax_floor=False, hard_swish_as_product=False),
    many_threads=None,
    runs_here=False,
    documentation=replace(
        ORT_CPU_VNNI.documentation,
        limits=(
            *ORT_CPU_VNNI.documentation.limits,
            "sums are in 32 bits: nothing saturates",
            "convolutions are fastest with int8 weights of zero point 0",
        ),
        placement=ORT_CPU_VNNI.documentation.placement_without(
            HARD_SWISH_RULE, FLOOR_RULE, MANY_THREADS_RULE
        ),
        sources=(
            "onnxruntime's documentation on the choice of data types: signed with signed on ARM64",
            "placement as measured on x86-64; not measured on ARM",
        ),
    ),
)
