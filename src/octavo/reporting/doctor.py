"""What ``doctor`` found, as a list for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from octavo.reporting.text import clean, many


class Finding(Protocol):
    """One thing to know."""

    @property
    def severity(self) -> str:
        """Error, warning or note."""
        ...

    @property
    def topic(self) -> str:
        """What it is about."""
        ...

    @property
    def place(self) -> str:
        """Where."""
        ...

    @property
    def text(self) -> str:
        """What."""
        ...

    @property
    def advice(self) -> str:
        """What to do."""
        ...


_SHOWN = 8  # findings of one topic


def diagnosis_table(model: str, findings: Sequence[Finding]) -> str:
    """A line for each finding and one for what to do; long topics are cut short."""
    counts = Counter(finding.severity for finding in findings)
    listed = ", ".join(many(counts[s], s) for s in ("error", "warning", "note") if counts[s])
    lines = [f"{clean(model)}: {listed or 'nothing stands in the way'}"]
    seen: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        key = (finding.severity, finding.topic)
        seen[key] += 1
        if seen[key] <= _SHOWN:
            lines.append(
                f"{finding.severity}: {finding.topic}: {clean(finding.place)}: {clean(finding.text, 600)}"
            )
            lines.append(f"    to do: {clean(finding.advice, 400)}")
    rest = {topic: count - _SHOWN for (_, topic), count in seen.items() if count > _SHOWN}
    lines += [f"… and {count} more about {topic} (--json lists all)" for topic, count in rest.items()]
    return "\n".join(lines)
