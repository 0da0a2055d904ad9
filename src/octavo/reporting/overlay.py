"""Node data for Model Explorer: what became of each operator, its error and its time, drawn on the graph.

Model Explorer (``ai-edge-model-explorer``) draws a model and lays data over its nodes, which it finds by
name. A file holds one kind of data, so that up to four are written:

=============  ==================================================================================
decision       quantized, kept in float, or fused
local-error    SQNR in dB of the operator alone, fed with float inputs; of a comparison
model-error    SQNR in dB of the quantized model up to the operator; of a comparison
time           microseconds of the operator in the quantized model; of a bench
=============  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.core.files import json_text, replacing
from octavo.errors import RecipeError
from octavo.reporting.html.graph_drawing import operators
from octavo.reporting.html.report_parts import Side, readable

_DECISIONS = {  # the state of an operator: what it is called, and its colour
    "quantized": ("quantized", "#cfe8d5"),
    "float": ("kept in float", "#f6d9b0"),
    "fused": ("fused", "#dfe3e8"),
}
_BAD, _MIDDLE, _GOOD = "#e06c5a", "#f4e3a1", "#7fc08f"
_MEASURED = {  # a file: the field of an operator, its title, and the colours from the least value to the most
    "local-error": ("local", "SQNR of the operator alone, dB", (_BAD, _MIDDLE, _GOOD)),
    "model-error": ("total", "SQNR up to here, dB", (_BAD, _MIDDLE, _GOOD)),
    "time": ("us", "time, µs", (_GOOD, _MIDDLE, _BAD)),
}


def overlays(side: Side) -> dict[str, dict[str, Any]]:
    """Return the node data of each kind that is known, as Model Explorer reads it."""
    rows = [row for row in operators(side) if row["state"] != "end"] or _compared(side)
    found: dict[str, Any] = {}
    decided = _planned(side)
    decided |= {row["name"]: _DECISIONS[row["state"]] for row in rows if row.get("state") in _DECISIONS}
    if decided:
        results = {name: {"value": word, "bgColor": colour} for name, (word, colour) in decided.items()}
        found["decision"] = {"name": "decision", "results": results}
    for kind, (field, title, colours) in _MEASURED.items():
        values = {row["name"]: {"value": row[field]} for row in rows if field in row}
        if values:
            found[kind] = {"name": title, "results": values, "gradient": _gradient(colours)}
    return found


def _planned(side: Side) -> dict[str, tuple[str, str]]:
    """Return what the plan says of each node, of those too that only the float model has."""
    plan = side.part("quantization").get("plan") or {}
    states = dict.fromkeys(plan.get("nodes") or (), "quantized")
    states |= dict.fromkeys((one["node"] for one in plan.get("skipped") or ()), "float")
    states |= dict.fromkeys(plan.get("fused") or (), "fused")
    return {name: _DECISIONS[state] for name, state in states.items()}


def _compared(side: Side) -> list[dict[str, Any]]:
    """Return the operators of a comparison, where nothing is known of the graph itself."""
    rows = []
    for tensor in side.part("comparison").get("tensors") or ():
        row = {"name": tensor.get("node") or tensor["name"]}
        for field, key in (("local", "local"), ("total", "accumulated")):
            value = (tensor.get(key) or {}).get("sqnr")
            if isinstance(value, int | float):
                row[field] = value
        rows.append(row)
    return rows


def _gradient(colours: Sequence[str]) -> list[Mapping[str, Any]]:
    return [{"stop": i / (len(colours) - 1), "bgColor": colour} for i, colour in enumerate(colours)]


def overlay_files(found: Sequence[Side], folder: str | Path) -> dict[Path, str]:
    """Return the files that the overlays of some results are written to, with their content."""
    files: dict[Path, str] = {}
    with readable():
        for number, side in enumerate(found):
            name = f"{Path(side.name or f'model{number + 1}').stem}." if len(found) > 1 else ""
            for kind, data in overlays(side).items():
                files[Path(folder) / f"{name}{kind}.json"] = json_text(data)
    if not files:
        raise RecipeError(
            "Nothing is known of single operators; give the JSON of quantize, compare or bench, or a"
            " quantized model."
        )
    return files


def write_overlays(files: Mapping[Path, str]) -> None:
    """Write all files, or none."""
    if not files:
        return
    with replacing([path.absolute() for path in files]) as opened:
        for file, text in zip(opened, files.values(), strict=True):
            file.write(text.encode() + b"\n")
