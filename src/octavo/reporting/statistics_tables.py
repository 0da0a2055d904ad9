"""Statistics as tables: which model and data they belong to, and the range of each tensor."""

from __future__ import annotations

from typing import Any

from octavo.core.origin import Origin
from octavo.core.stats import Stats
from octavo.reporting.text import columns, many


def stats_line(stats: Stats) -> str:
    """Return the number of tensors and samples, on one line."""
    return f"{many(len(stats), 'tensor')} on {many(stats.samples, 'sample')}"


def stats_text(stats: Stats, *, tensors: bool = False) -> str:
    """Return what a file of statistics holds; with ``tensors`` a line for each tensor."""
    rows: list[list[object]] = [["holds", stats_line(stats)]]
    if stats.origin is not None:
        rows += _origin_rows(stats.origin)
    unseen = _unseen(stats)
    if unseen:
        rows.append(["without any value", ", ".join(unseen)])
    blocks = [columns(rows)]
    if tensors:
        lines = [
            [name, state.kind, f"{state.low:.6g}", f"{state.high:.6g}", state.count]
            for name, state in sorted(stats.items())
        ]
        blocks.append(columns(lines, ["tensor", "kind", "min", "max", "samples"]))
    return "\n\n".join(blocks)


def stats_dict(stats: Stats) -> dict[str, Any]:
    """Return the same as plain data."""
    return {
        "samples": stats.samples,
        "origin": stats.origin.to_dict() if stats.origin is not None else None,
        "unseen": _unseen(stats),
        "tensors": {
            name: {
                "kind": state.kind,
                "low": state.low,
                "high": state.high,
                "samples": state.count,
                "infinite": state.non_finite,
            }
            for name, state in sorted(stats.items())
        },
    }


def _origin_rows(origin: Origin) -> list[list[object]]:
    spans = ", ".join(f"{first} to {stop - 1}" for first, stop in origin.spans)
    return [
        ["model", f"{origin.model} (prepared {origin.prepare})"],
        ["data", f"{origin.fingerprint}{f' of {origin.source}' if origin.source else ''}"],
        ["samples", spans or "none"],
    ]


def _unseen(stats: Stats) -> list[str]:
    """Return the tensors that were requested and never had a value."""
    return sorted(set(stats.origin.needs) - set(stats)) if stats.origin is not None else []
