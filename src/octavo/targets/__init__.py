"""Datasheets of the runtimes that a model can be quantized for, found by name."""

from octavo.errors import RecipeError, closest
from octavo.targets.openvino import OPENVINO
from octavo.targets.ort_cpu import ORT_CPU
from octavo.targets.ort_cpu_arm64 import ORT_CPU_ARM64
from octavo.targets.ort_cpu_avx2 import ORT_CPU_AVX2
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI
from octavo.targets.ort_cuda import ORT_CUDA
from octavo.targets.portable import PORTABLE
from octavo.targets.qnn import QNN
from octavo.targets.target import Target
from octavo.targets.tensorrt import TENSORRT
from octavo.targets.web import WEB

TARGETS: dict[str, Target] = {
    sheet.name: sheet
    for sheet in (
        ORT_CPU,
        ORT_CPU_VNNI,
        ORT_CPU_AVX2,
        ORT_CPU_ARM64,
        ORT_CUDA,
        TENSORRT,
        QNN,
        OPENVINO,
        WEB,
        PORTABLE,
    )
}


def target(name: str | Target) -> Target:
    """The target of this name."""
    if isinstance(name, Target):
        return name
    if name not in TARGETS:
        raise RecipeError(f"{name!r} is no target{closest(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[name]


__all__ = ["TARGETS", "Target", "target"]
