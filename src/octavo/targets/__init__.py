"""Datasheets of the runtimes that a model can be quantized for, found by name."""

from octavo.errors import RecipeError, closest
from octavo.targets.ort_cpu import ORT_CPU
from octavo.targets.portable import PORTABLE
from octavo.targets.target import Target

TARGETS: dict[str, Target] = {t.name: t for t in (ORT_CPU, PORTABLE)}


def target(name: str | Target) -> Target:
    """The target of this name."""
    if isinstance(name, Target):
        return name
    if name not in TARGETS:
        raise RecipeError(f"{name!r} is no target{closest(name, TARGETS)} Known: {', '.join(TARGETS)}.")
    return TARGETS[name]


__all__ = ["TARGETS", "Target", "target"]
