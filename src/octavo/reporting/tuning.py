"""A search as text: what was tried, what it gave, what was chosen, and which layers lose most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.reporting.text import clean, columns, markdown_table, size

MOST_LAYERS = 8  # that the text names

_HEAD = ("", "tried", "speed to float", "SQNR dB", "same class", "size", "to float")


def table(data: Mapping[str, Any]) -> str:
    """All trials with their figures, the chosen one marked, and the reason."""
    lines = [columns(_rows(data), _head(data))]
    lines += [f"  {clean(t['name'])}: {clean(t['error'])}" for t in data["trials"] if t["error"]]
    lines.append(
        f"\nchosen: {clean(data['reason'], 4000)}" if data["met"] else f"\n{clean(data['reason'], 4000)}"
    )
    if data["held_back"]:
        lines.append(f"judged by {data['held_back']} samples that calibration has not seen")
    lines += [clean(note, 400) for note in data.get("notes") or ()]
    weak = weakest(data)
    if weak:
        lines.append("\nlayers that lose most by themselves:")
        lines.append(columns([(row["node"], row["op_type"], _decibels(row["sqnr_db"])) for row in weak],
                             ("layer", "op type", "SQNR dB")))  # fmt: skip
    return "\n".join(lines)


def markdown(data: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    parts = ["## What was tried", markdown_table(_rows(data), _head(data)), clean(data["reason"], 4000)]
    weak = weakest(data)
    if weak:
        rows = [(row["node"], row["op_type"], _decibels(row["sqnr_db"])) for row in weak]
        parts += ["## Layers that lose most", markdown_table(rows, ("layer", "op type", "SQNR dB"))]
    return "\n\n".join(parts)


def weakest(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The layers that the text names."""
    return list(data.get("layers") or ())[:MOST_LAYERS]


def _head(data: Mapping[str, Any]) -> tuple[str, ...]:
    score = _score_name(data)
    return (*_HEAD[:5], score, *_HEAD[5:]) if score is not None else _HEAD


def _score_name(data: Mapping[str, Any]) -> str | None:
    return next((trial["score"]["name"] for trial in data["trials"] if trial.get("score")), None)


def _rows(data: Mapping[str, Any]) -> list[list[str]]:
    scored = _score_name(data) is not None
    return [
        _row(trial, trial["name"] == data["best"], data["float_bytes"], scored) for trial in data["trials"]
    ]


def _row(trial: Mapping[str, Any], is_best: bool, float_bytes: int, scored: bool) -> list[str]:
    speed, same, score = trial["speed"], trial["agreement"], trial.get("score")
    share = trial["bytes"] / float_bytes if trial["bytes"] and float_bytes else None
    return [
        "→" if is_best else "",
        clean(trial["name"]),
        f"{speed['value']:.2f} × ({speed['low']:.2f} … {speed['high']:.2f})" if speed else "–",
        _decibels(trial["sqnr_db"]),
        f"{100 * same:.1f} %" if same is not None else "–",
        *([f"{score['value']:.4g}" if score else "–"] if scored else []),
        size(trial["bytes"]) if trial["bytes"] is not None else "–",
        f"{share:.2f} ×" if share is not None else "",
    ]


def _decibels(value: float | None) -> str:
    return f"{value:.1f}" if value is not None else "–"
