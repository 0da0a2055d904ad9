"""A search as text: what was tried, what it gave, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.reporting.text import clean, columns, size


def table(data: Mapping[str, Any]) -> str:
    """All trials with their figures, the chosen one marked, and the reason."""
    rows = [_row(trial, trial["name"] == data["best"]) for trial in data["trials"]]
    head = ["", "tried", "speed to float", "SQNR dB", "same class", "size", "to float"]
    for row, trial in zip(rows, data["trials"], strict=True):
        share = trial["bytes"] / data["float_bytes"] if trial["bytes"] and data["float_bytes"] else None
        row.append(f"{share:.2f} ×" if share is not None else "")
    lines = [columns(rows, head)]
    lines += [f"  {clean(t['name'])}: {clean(t['error'])}" for t in data["trials"] if t["error"]]
    lines.append(f"\nchosen: {clean(data['reason'])}" if data["met"] else f"\n{clean(data['reason'])}")
    lines.append(f"judged by {data['held_back']} samples that calibration has not seen")
    return "\n".join(lines)


def _row(trial: Mapping[str, Any], is_best: bool) -> list[str]:
    speed, same = trial["speed"], trial["agreement"]
    return [
        "→" if is_best else "",
        clean(trial["name"]),
        f"{speed['value']:.2f} × ({speed['low']:.2f} … {speed['high']:.2f})" if speed else "–",
        f"{trial['sqnr_db']:.1f}" if trial["sqnr_db"] is not None else "–",
        f"{100 * same:.1f} %" if same is not None else "–",
        size(trial["bytes"]) if trial["bytes"] is not None else "–",
    ]
