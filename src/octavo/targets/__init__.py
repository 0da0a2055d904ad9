"""Datasheets of the runtimes that a model can be quantized for, found by name."""

from octavo.core.arguments import check_type
from octavo.core.lazy import load_entry
from octavo.errors import RecipeError, closest
from octavo.targets.target import Target

_SHEETS = (  # module of octavo.targets and constant, in the order in which they are listed
    "ort_cpu:ORT_CPU",
    "ort_cpu_vnni:ORT_CPU_VNNI",
    "ort_cpu_avx2:ORT_CPU_AVX2",
    "ort_cpu_arm64:ORT_CPU_ARM64",
    "ort_cuda:ORT_CUDA",
    "tensorrt:TENSORRT",
    "qnn:QNN",
    "openvino:OPENVINO",
    "web:WEB",
    "portable:PORTABLE",
)
TARGETS: dict[str, Target] = {
    sheet.name: sheet for sheet in (load_entry("octavo.targets", line) for line in _SHEETS)
}


def target(name: str | Target) -> Target:
    """Return the target of this name."""
    if isinstance(name, Target):
        return name
    check_type("target", name, str, "a Target or the name of one, such as 'tensorrt'")
    if name not in TARGETS:
        raise RecipeError(
            f"{name!r} is not a target{closest(name, TARGETS) or '.'} Known: {', '.join(TARGETS)}."
        )
    return TARGETS[name]


__all__ = ["TARGETS", "Target", "target"]
