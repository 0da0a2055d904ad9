"""A model card in Markdown: what a quantized model is, what it was made from, its figures, how to make it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.reporting.figures import decibels_text, metric_text, metric_title, share_text, speed_text
from octavo.reporting.text import escaped, many, markdown_table, size
from octavo.reporting.trial_tables import best_trial


def model_card(
    result: Mapping[str, Any], manifest: Mapping[str, Any], *, model: str, output: str, command: str
) -> str:
    """Return the card of a result, from its plain data and its manifest.

    ``command`` is what makes the model again.
    """
    quantized = ", ".join(f"{count} {op}" for op, count in result["quantized"].items()) or "nothing"
    recipe, kind = manifest.get("recipe") or {}, "16-bit" if _only_half(result) else "quantized"
    rows = [
        ["made from", f"{Path(model).name}, fingerprint {_short(manifest['fingerprints']['model'])}"],
        ["quantized", quantized],
        *_half_rows(result),
        *([] if _only_half(result) else _type_rows(result, recipe)),
        ["target", str(recipe.get("target", "ort-cpu"))],
        ["size of weights", f"{size(result['float_bytes'])} → {size(result['bytes'])}"],
        ["calibrated with", _calibration(manifest)],
    ]
    parts = [
        f"# {escaped(Path(output).name)}",
        f"A {kind} copy of `{escaped(Path(model).name)}`, made by Octavo {manifest['octavo']}.",
        "## What it is",
        markdown_table(rows, ["", ""]),
        "## Figures",
        _figures(result),
        "## How to reproduce",
        f"```console\n$ {command}\n```",
        "Versions: " + ", ".join(f"{name} {one}" for name, one in manifest["versions"].items()) + ".",
    ]
    notes = [f"- {escaped(str(note))}" for note in result.get("notes") or ()]
    if notes:
        parts += ["## Notes", "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


def _half(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return (result.get("plan") or {}).get("half") or {}


def _only_half(result: Mapping[str, Any]) -> bool:
    return bool(_half(result)) and not result["quantized"]


def _half_rows(result: Mapping[str, Any]) -> list[list[str]]:
    half = _half(result)
    if not half:
        return []
    nodes, weights = half.get("nodes"), half.get("weights") or ()
    done = f"{many(len(nodes), 'operator')} computed" if nodes else f"{many(len(weights), 'weight')} stored"
    kept = half.get("kept") or ()
    rest = f", {len(kept)} kept in float32" if kept else ""
    return [["16-bit floats", f"{done} in {half['float_type']}{rest}"]]


def _type_rows(result: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["kept in float", many(len(result["skipped"]), "operator")],
        ["weights", _weights(result, recipe)],
        ["activations", _scheme(recipe.get("activations")) if result["quantized"] else "float"],
        ["format", str(recipe.get("style", "qdq"))],
    ]


def _weights(result: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    if result["quantized"]:
        return _scheme(recipe.get("weights"))
    compressed = (result.get("plan") or {}).get("compressed") or ()
    return f"float, {len(compressed)} of them stored as int8" if compressed else "float"


def _short(fingerprint: str | None) -> str:
    return f"`{fingerprint[:16]}`" if fingerprint else "unknown"


def _scheme(scheme: Any) -> str:
    if not isinstance(scheme, Mapping):
        return str(scheme) if scheme else "float"
    if "qtype" not in scheme:
        return "quantized while the model runs"
    return f"{scheme['qtype']} per {scheme.get('granularity', 'tensor')}"


def _calibration(manifest: Mapping[str, Any]) -> str:
    if not manifest["samples"]:
        return "nothing"
    return (
        f"{many(int(manifest['samples']), 'sample')}, fingerprint {_short(manifest['fingerprints']['data'])}"
    )


def _figures(result: Mapping[str, Any]) -> str:
    rows = _trial_rows(result.get("tuning") or {})
    rows += [
        [gate["name"].replace("_", "-"), gate["measured"], f"{gate['limit']}: {_state(gate)}"]
        for gate in result.get("gates") or ()
    ]
    if not rows:
        return "Accuracy and speed were not measured; run `octavo evaluate` and `octavo bench`."
    return markdown_table(rows, ["figure", "measured", "required"])


def _state(gate: Mapping[str, Any]) -> str:
    return "met" if gate["passed"] else "not met" if gate.get("decided", True) else "undecided"


def _trial_rows(tuning: Mapping[str, Any]) -> list[list[str]]:
    trial = best_trial(tuning)
    if trial is None:
        return []
    rows: list[list[str]] = []
    held = many(int(tuning.get("held_back") or 0), "held-back sample")
    if trial.get("score"):
        score = trial["score"]
        values = [
            metric_text(score["name"], score[key], bool(score.get("percent"))) for key in ("value", "float")
        ]
        rows.append([metric_title(score["name"]), f"{values[0]} (float {values[1]})", ""])
    if trial.get("sqnr_db") is not None:
        rows.append(["SQNR of the worst output", f"{decibels_text(trial['sqnr_db'])}, {held}", ""])
    if trial.get("agreement") is not None:
        rows.append(["same class as float", f"{share_text(trial['agreement'])}, {held}", ""])
    if trial.get("speed"):
        rows.append(["speed to float, on the machine that made it", speed_text(trial["speed"]), ""])
    return rows
