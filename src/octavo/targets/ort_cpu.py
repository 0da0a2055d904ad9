"""ONNX Runtime's CPU provider on the machine that this runs on: one of the other ``ort-cpu-…`` sheets."""

import platform
from dataclasses import replace
from functools import cache
from pathlib import Path

from octavo.core.files import read_bytes
from octavo.targets.ort_cpu_arm64 import ORT_CPU_ARM64
from octavo.targets.ort_cpu_avx2 import ORT_CPU_AVX2
from octavo.targets.ort_cpu_vnni import ORT_CPU_VNNI
from octavo.targets.target import Target

# ---- Which of the CPU datasheets holds for the machine that this runs on

CPUINFO = Path("/proc/cpuinfo")
_MOST_BYTES = 64 << 20  # of what Linux says of its CPUs
_VNNI = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})


def sheet(machine: str, flags: frozenset[str]) -> Target:
    """Return the datasheet for an architecture and CPU flags; without flags the one that is always right."""
    if machine.lower() in ("aarch64", "arm64"):
        return ORT_CPU_ARM64
    return ORT_CPU_VNNI if flags & _VNNI else ORT_CPU_AVX2


def flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Return the CPU's flags as Linux lists them; none elsewhere."""
    try:
        lines = read_bytes(cpuinfo, _MOST_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return frozenset()
    first = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(first.partition(":")[2].split())


@cache
def this_machine() -> Target:
    """Return the datasheet for this machine."""
    return sheet(platform.machine(), flags())


_SHEET = this_machine()

ORT_CPU = replace(
    _SHEET,
    name="ort-cpu",
    summary=f"ONNX Runtime, CPU provider, on the CPU at hand: here the same as {_SHEET.name}",
    static_recipe=_SHEET.static_recipe.but(target="ort-cpu"),
    dynamic_recipe=_SHEET.dynamic_recipe.but(target="ort-cpu"),
    runs_here=True,
)
