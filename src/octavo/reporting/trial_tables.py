"""Trials as text: what was tried, what it gave, what was chosen, and which layers lose most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.core.intervals import wilson_half_width
from octavo.reporting.figures import (
    NONE,
    counted_share_text,
    decibels_text,
    metric_text,
    metric_title,
    number,
    speed_text,
)
from octavo.reporting.text import clean, columns, many, markdown_table, size

_LISTED_LAYERS = 8  # of those that lose most
_LAYER_HEAD = ("layer", "op type", "SQNR dB")
_FEW_SAMPLES = 32  # held back; with fewer, a share is told with its interval
_FEW_TOKENS = 1000  # held back; with fewer, a mean over them is known to no better than some 7 %


def best_trial(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the trial that was chosen."""
    found = (trial for trial in data.get("trials") or () if trial["name"] == data.get("best"))
    return next(found, None)


def trial_figures(trial: Mapping[str, Any]) -> list[str]:
    """Return what was measured of one trial, in words."""
    score = trial.get("score")
    task = []
    if score:
        value = metric_text(score["name"], score["value"], bool(score.get("percent")))
        task = [f"{metric_title(score['name'])} {value}"]
    told = trial.get("predictions")
    found = [
        f"{speed_text(trial['speed'])} as fast as float" if trial["speed"] else "",
        f"KL {told['kl']:.3f}, perplexity {told['perplexity']:.2f}" if told else "",
        decibels_text(trial["sqnr_db"]) if number(trial["sqnr_db"]) is not None else "",
        *task,
        size(trial["bytes"]) if trial["bytes"] is not None else "",
    ]
    return [part for part in found if part]


def requirement_texts(requirements: Mapping[str, Any]) -> list[str]:
    """Return what was required of a result, in words."""
    words = []
    least = number(requirements.get("min_sqnr"))
    if requirements.get("max_drop") is not None:
        words.append(f"at most {requirements['max_drop']} lost in the task")
    if least is not None and math.isfinite(least):
        words.append(f"SQNR ≥ {least:g} dB")
    for key, what in (("min_speed", "speed ≥"), ("max_size", "size ≤")):
        value = number(requirements.get(key))
        if value is not None and math.isfinite(value) and value > 0:
            words.append(f"{what} {value:g} × float")
    return words


def asked(requirements: Mapping[str, Any]) -> bool:
    """Return whether more was required than what always is: no slower and no larger than float."""
    sizes = [number(requirements.get(key)) for key in ("min_speed", "max_size")]
    others = [
        number(requirements.get("min_sqnr")) not in (None, -math.inf),
        requirements.get("max_drop") is not None,
    ]
    return any(value not in (None, 1.0) for value in sizes) or any(others)


def trials_table(data: Mapping[str, Any]) -> str:
    """Return all trials with their figures, the chosen one marked, and the reason."""
    lines = [columns(_rows(data), _head(data))]
    lines += [f"  {clean(t['name'])}: {clean(t['error'])}" for t in data["trials"] if t["error"]]
    lines.append(("\nchosen: " if data["met"] else "\n") + clean(data["reason"], 4000))
    lines += reliability(data)
    lines += [clean(note, 400) for note in data.get("notes") or ()]
    layers = _layer_rows(data)
    if layers:
        lines += ["\nlayers that lose most by themselves:", columns(layers, _LAYER_HEAD)]
    return "\n".join(lines)


def reliability(data: Mapping[str, Any]) -> list[str]:
    """Return how many samples or tokens the choice rests on, and how little few of them say."""
    held = int(data["held_back"])
    if not held:
        return []
    best = best_trial(data)
    tokens = int(((best or {}).get("predictions") or {}).get("judged") or 0)
    if tokens:
        text = f"compared with float on {many(tokens, 'token')} that calibration has not seen"
        return [text + ("; give more text to know KL better" if tokens < _FEW_TOKENS else "")]
    text = f"compared with float on {many(held, 'sample')} that calibration has not seen"
    same = number(best.get("agreement")) if best is not None else None
    if held < _FEW_SAMPLES and same is not None:
        width = 100 * wilson_half_width(same, sample_count(best or {}, held))
        text += f": the share of equal classes is known to ± {width:.0f} points; give more data to narrow it"
    return [text]


def trials_markdown(data: Mapping[str, Any]) -> str:
    """Return the same in Markdown."""
    parts = ["## What was tried", markdown_table(_rows(data), _head(data)), clean(data["reason"], 4000)]
    parts += reliability(data)
    layers = _layer_rows(data)
    if layers:
        parts += ["## Layers that lose most", markdown_table(layers, _LAYER_HEAD)]
    return "\n\n".join(parts)


def _layer_rows(data: Mapping[str, Any]) -> list[list[str]]:
    layers = list(data.get("layers") or ())[:_LISTED_LAYERS]
    return [[row["node"], row["op_type"], decibels_text(row["sqnr_db"], "")] for row in layers]


def sample_count(trial: Mapping[str, Any], held: int) -> int:
    """Return the samples that an agreement rests on: positions of one sample are not independent."""
    return max(1, min(int(trial.get("places") or held), held))


def _score_name(data: Mapping[str, Any]) -> str | None:
    return next((trial["score"]["name"] for trial in data["trials"] if trial.get("score")), None)


def _is_language(data: Mapping[str, Any]) -> bool:
    """Return whether the trials are of a language model."""
    return any(trial.get("predictions") for trial in data["trials"])


def _pace(trial: Mapping[str, Any], kind: str) -> str:
    """Return tokens a second with what that is to float."""
    found = (trial.get("tokens") or {}).get(kind)
    return f"{found['tokens_per_second']:.0f} ({found['ratio']['value']:.2f} ×)" if found else NONE


def _language_row(trial: Mapping[str, Any], data: Mapping[str, Any], sizes: Sequence[str]) -> list[str]:
    told, same = trial.get("predictions"), number(trial["agreement"])
    return [
        "→" if trial["name"] == data["best"] else "",
        clean(trial["name"]),
        _pace(trial, "prefill"),
        _pace(trial, "decode"),
        f"{told['kl']:.3f}" if told else NONE,
        f"{told['perplexity']:.2f}" if told else NONE,
        f"{100 * same:.1f} %" if same is not None else NONE,
        *sizes,
    ]


def _head(data: Mapping[str, Any]) -> Sequence[str]:
    score = _score_name(data)
    task = [metric_title(score)] if score is not None else []
    if _is_language(data):
        speeds = ["prompt tokens/s", "written tokens/s"]
        return ["", "tried", *speeds, "KL", "perplexity", "same token", "size", "to float"]
    return ["", "tried", "speed to float", "SQNR dB", "same class", *task, "size", "to float"]


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    held, scored = int(data["held_back"]), _score_name(data) is not None
    return [_row(trial, data, held, scored) for trial in data["trials"]]


def _row(trial: Mapping[str, Any], data: Mapping[str, Any], held: int, scored: bool) -> list[str]:
    same, score = number(trial["agreement"]), trial.get("score")
    weight = trial["bytes"] / data["float_bytes"] if trial["bytes"] and data["float_bytes"] else None
    task = metric_text(score["name"], score["value"], bool(score.get("percent"))) if score else NONE
    sizes = [
        size(trial["bytes"]) if trial["bytes"] is not None else NONE,
        f"{weight:.2f} ×" if weight is not None else "",
    ]
    if _is_language(data):
        return _language_row(trial, data, sizes)
    return [
        "→" if trial["name"] == data["best"] else "",
        clean(trial["name"]),
        speed_text(trial["speed"]),
        decibels_text(trial["sqnr_db"], ""),
        counted_share_text(same, sample_count(trial, held) if held else 0),
        *([task] if scored else []),
        *sizes,
    ]
