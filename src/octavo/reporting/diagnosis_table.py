"""Findings of ``doctor`` and ``lint`` as lists for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.reporting.text import clean, many

SEVERITIES = ("error", "warning", "note")
_LISTED = 8  # findings of one topic; the rest is only counted


def counted(severities: Sequence[str], nothing: str) -> str:
    """Return how many findings there are of each severity: ``1 error, 2 notes``."""
    counts = Counter(severities)
    return ", ".join(many(counts[s], s) for s in SEVERITIES if counts[s]) or nothing


def diagnosis_table(model: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each finding and one for what to do; long topics are shortened."""
    severities = [finding["severity"] for finding in findings]
    lines = [f"{clean(model)}: {counted(severities, 'nothing found that would hinder quantization')}"]
    seen: Counter[tuple[str, str]] = Counter()
    for one in findings:
        key = (one["severity"], one["topic"])
        seen[key] += 1
        if seen[key] <= _LISTED:
            lines.append(
                f"{one['severity']}: {one['topic']}: {clean(one['place'])}: {clean(one['text'], 600)}"
            )
            lines.append(f"    to do: {clean(one['advice'], 400)}")
    rest = {topic: count - _LISTED for (_, topic), count in seen.items() if count > _LISTED}
    lines += [f"… and {count} more about {topic} (--json lists all)" for topic, count in rest.items()]
    return "\n".join(lines)
