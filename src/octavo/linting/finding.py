"""What lint has to say of one place in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from octavo.linting.view import View
    from octavo.model.graph.edit import Editor

Repair: TypeAlias = "Callable[[Editor], None]"


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"  # refused by the target, or wrong results
    WARNING = "warning"  # slow, or less accurate than it could be
    NOTE = "note"  # superfluous


@dataclass(frozen=True)
class Finding:
    """One fault: which rule, where, what it leads to, and what to do."""

    rule: str
    severity: Severity
    node: str
    consequence: str
    fix: str
    repair: Repair | None = field(default=None, compare=False, repr=False)  # where --fix can do it, exactly

    @property
    def fixable(self) -> bool:
        """Whether ``--fix`` does it."""
        return self.repair is not None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "rule": self.rule,
            "severity": self.severity.value,
            "node": self.node,
            "consequence": self.consequence,
            "fix": self.fix,
            "fixable": self.fixable,
        }


@dataclass(frozen=True)
class Fault:
    """What a rule's function gives: a finding, less the rule's own name and severity."""

    node: str
    consequence: str
    fix: str
    repair: Repair | None = None


@dataclass(frozen=True)
class Rule:
    """A rule: its id, what it looks for in a sentence, and the function that looks."""

    id: str
    severity: Severity
    title: str
    check: Callable[[View], Iterable[Fault]]
    runs: bool = False  # asks the installed runtime

    def findings(self, view: View) -> list[Finding]:
        """Return all that the rule finds."""
        return [
            Finding(self.id, self.severity, one.node, one.consequence, one.fix, one.repair)
            for one in self.check(view)
        ]


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, title: str, *, runs: bool = False
) -> Callable[[Callable[[View], Iterable[Fault]]], Callable[[View], Iterable[Fault]]]:
    """Register a function as a rule."""

    def register(check: Callable[[View], Iterable[Fault]]) -> Callable[[View], Iterable[Fault]]:
        RULES[id] = Rule(id, severity, title, check, runs)
        return check

    return register
