"""Any runtime and any CPU: 7-bit weights, so that kernels that add products in 16 bits never saturate."""

from dataclasses import replace

from octavo.core.recipe import W8, W8A8
from octavo.targets.ort_cpu import ORT_CPU

PORTABLE = replace(
    ORT_CPU,
    name="portable",
    summary="Correct on every CPU: as ort-cpu, with weights in 7 bits (reduced range)",
    static_recipe=W8A8.but(weights=W8A8.weights.but(reduce_range=True), target="portable"),
    dynamic_recipe=W8.but(weights=W8.weights.but(reduce_range=True), target="portable"),
)
