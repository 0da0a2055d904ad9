"""What lint found: a finding for each place, as text, as plain data and as SARIF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from octavo._version import __version__
from octavo.core.shown import Shown
from octavo.model.files import io
from octavo.reporting.comparison_tables import counted
from octavo.reporting.text import clean, some

if TYPE_CHECKING:
    from octavo.linting.view import LintedModel
    from octavo.model.graph.edit import Editor


# ---- What lint has to say of one place in a model

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
        """Whether ``--fix`` repairs it."""
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
    check: Callable[[LintedModel], Iterable[Fault]]
    runs: bool = False  # asks the installed runtime

    def findings(self, view: LintedModel) -> list[Finding]:
        """Return all that the rule finds."""
        return [
            Finding(self.id, self.severity, one.node, one.consequence, one.fix, one.repair)
            for one in self.check(view)
        ]


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, title: str, *, runs: bool = False
) -> Callable[[Callable[[LintedModel], Iterable[Fault]]], Callable[[LintedModel], Iterable[Fault]]]:
    """Register a function as a rule."""

    def register(check: Callable[[LintedModel], Iterable[Fault]]) -> Callable[[LintedModel], Iterable[Fault]]:
        RULES[id] = Rule(id, severity, title, check, runs)
        return check

    return register


# ---- What lint found, as text, as plain data and as SARIF

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, eq=False, repr=False)
class Lint(Shown):
    """The findings for one model and target; ``fixed`` are those that are repaired in ``model``."""

    model: ir.Model
    source: str
    target: str
    findings: tuple[Finding, ...]
    fixed: tuple[Finding, ...] = ()

    @property
    def errors(self) -> int:
        """Return how many findings are errors."""
        return sum(one.severity is Severity.ERROR for one in self.findings)

    @property
    def rules(self) -> set[str]:
        """Return the rules that found something."""
        return {one.rule for one in self.findings}

    def save(self, path: str | Path, *, external_data: bool | None = None) -> list[Path]:
        """Write the model, with what was fixed."""
        return io.save(self.model, path, external_data=external_data)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.source,
            "target": self.target,
            "findings": [one.to_dict() for one in self.findings],
            "fixed": [one.to_dict() for one in self.fixed],
        }

    def to_sarif(self) -> dict[str, Any]:
        """Return a log in SARIF 2.1.0."""
        used = sorted({one.rule for one in self.findings})
        return {
            "$schema": _SARIF,
            "version": "2.1.0",
            "runs": [
                {
                    "tool": {
                        "driver": {
                            "name": "octavo",
                            "version": __version__,
                            "rules": [_rule(name) for name in used],
                        }
                    },
                    "results": [self._result(one, used) for one in self.findings],
                }
            ],
        }

    def _result(self, one: Finding, used: list[str]) -> dict[str, Any]:
        return {
            "ruleId": one.rule,
            "ruleIndex": used.index(one.rule),
            "level": one.severity.value,
            "message": {"text": f"{one.node}: {one.consequence}. Fix: {one.fix}."},
            "locations": [
                {
                    "physicalLocation": {"artifactLocation": {"uri": _uri(self.source)}},
                    "logicalLocations": [{"name": one.node, "kind": "object"}],
                }
            ],
            "properties": {"fixable": one.fixable, "target": self.target},
        }

    def __str__(self) -> str:
        found = counted([one.severity.value for one in self.findings], "nothing found")
        lines = [f"{clean(self.source)} for {self.target}: {found}"]
        for one, nodes in _alike(self.findings):
            mark = " (--fix does it)" if one.fixable else ""
            several = f"{len(nodes)} nodes: " if len(nodes) > 1 else ""
            lines += [
                f"  {one.rule} {one.severity.value:<8}{several}{some(nodes)}",
                f"    {clean(one.consequence, 1000)}",
                f"    fix: {clean(one.fix, 1000)}{mark}",
            ]
        if self.fixed:
            counts = Counter(one.rule for one in self.fixed)
            lines.append("fixed: " + ", ".join(f"{count} × {name}" for name, count in sorted(counts.items())))
        return "\n".join(lines)


def _alike(findings: Iterable[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return findings that say the same as one, each with its nodes."""
    found: dict[tuple[object, ...], tuple[Finding, list[str]]] = {}
    for one in findings:
        words = (one.rule, one.severity, one.consequence, one.fix, one.fixable)
        found.setdefault(words, (one, []))[1].append(one.node)
    return list(found.values())


def _rule(name: str) -> dict[str, Any]:
    found = RULES[name]
    return {
        "id": name,
        "shortDescription": {"text": found.title},
        "defaultConfiguration": {"level": found.severity.value},
    }


def _uri(source: str) -> str:
    path = Path(source)
    return path.as_uri() if path.is_absolute() else path.as_posix()
