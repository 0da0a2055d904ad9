"""The steps as text for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from inspect import getdoc, getmodule
from typing import Any

from octavo.reporting.text import columns

_WHEN = {
    "float": "on the float model",
    "plan": "on the plan",
    "weights": "on weights",
    "ranges": "on ranges",
    "integers": "on the integers",
}


def step_table(kinds: Iterable[Any]) -> str:
    """Return one line for each step."""
    rows = [[kind.name, _WHEN[kind.phase.value], kind.summary] for kind in kinds]
    return columns(rows, ["step", "works", "does"])


def step_detail(kind: Any) -> str:
    """Return what a step does, with its formula, and its options."""
    module = getmodule(kind)
    about = getdoc(module) if module is not None else kind.summary
    options = [f"  {kind.name}:{name.replace('_', '-')}={value}" for name, value in _options(kind).items()]
    shown = "\n".join(["\n\noptions and their defaults:", *options]) if options else ""
    return f"{kind.name}\n\n{about}{shown}"


def step_data(kind: Any) -> dict[str, Any]:
    """Return a step as plain data."""
    return {
        "name": kind.name,
        "phase": kind.phase.value,
        "summary": kind.summary,
        "options": _options(kind),
    }


def _options(kind: Any) -> dict[str, Any]:
    return {entry.name: _word(entry.default) for entry in fields(kind)}


def _word(value: Any) -> Any:
    if value is None:
        return "auto"
    return ("yes" if value else "no") if isinstance(value, bool) else value
