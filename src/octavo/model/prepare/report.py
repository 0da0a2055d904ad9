"""What preparation changed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """One pass and what it did."""

    pass_name: str
    count: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.pass_name}: {self.detail or self.count}"


@dataclass(frozen=True)
class PrepareReport:
    """All changes in order, and notes on what could not be done; prints as a few lines."""

    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        if not self.changes and not self.notes:
            return "nothing to prepare"
        return "\n".join([*map(str, self.changes), *(f"note: {note}" for note in self.notes)])
