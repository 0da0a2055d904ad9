"""ONNX Runtime's CPU provider on the machine that this runs on: one of the other ``ort-cpu-…`` sheets."""

from dataclasses import replace

from octavo.targets.detect import this_machine

_SHEET = this_machine()

ORT_CPU = replace(
    _SHEET,
    name="ort-cpu",
    summary=f"ONNX Runtime, CPU provider, on the CPU at hand: here the same as {_SHEET.name}",
    static_recipe=_SHEET.static_recipe.but(target="ort-cpu"),
    dynamic_recipe=_SHEET.dynamic_recipe.but(target="ort-cpu"),
    runs_here=True,
)
