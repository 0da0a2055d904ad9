"""Statistics in words: of which model and data they are, and what each tensor's values were."""

from __future__ import annotations

from typing import Any

from octavo.core.origin import Origin
from octavo.core.stats import Stats
from octavo.reporting.text import columns, many


def stats_line(stats: Stats) -> str:
    """How much there is, on one line."""
    return f"{many(len(stats), 'tensor')} on {many(stats.samples, 'sample')}"


def stats_text(stats: Stats, *, tensors: bool = False) -> str:
    """What a file of statistics holds; with ``tensors`` a line for each."""
    rows: list[list[object]] = [["holds", stats_line(stats)]]
    if stats.origin is not None:
        rows += _origin_rows(stats.origin)
    unseen = _unseen(stats)
    if unseen:
        rows.append(["no value in any sample", ", ".join(unseen)])
    blocks = [columns(rows)]
    if tensors:
        lines = [
            [name, state.kind, f"{state.low:.6g}", f"{state.high:.6g}", state.count]
            for name, state in sorted(stats.items())
        ]
        blocks.append(columns(lines, ["tensor", "kind", "least", "largest", "samples"]))
    return "\n\n".join(blocks)


def stats_dict(stats: Stats) -> dict[str, Any]:
    """The same as plain data."""
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
    """Tensors that were asked for and never had a value."""
    return sorted(set(stats.origin.needs) - set(stats)) if stats.origin is not None else []
