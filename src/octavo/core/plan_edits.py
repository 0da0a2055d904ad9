"""Changes to a plan that leave it whole: what belongs together is changed together.

A node of a plan, the entries that only it reads and the reason why a node stays in float say one thing in
several places. The calls here change all of them at once; a file that was edited by hand in one of the places
only is refused when it is read (:meth:`octavo.core.plan.Plan.check`).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

from octavo.core.arguments import check_arguments
from octavo.core.entries import Derived, Dynamic, Entry, Key, Shared, Skipped
from octavo.core.granularity import Granularity
from octavo.core.override import Override
from octavo.core.plan import Plan
from octavo.core.qtypes import QType
from octavo.core.scheme import Method
from octavo.errors import RecipeError, closest

KEPT_IN_FLOAT = "kept in float by an edit of the plan"


class Settings(TypedDict, total=False):
    """What :meth:`octavo.Plan.set` changes; what is left out stays as it is.

    ============  =================================================================================
    qtype         the integer type, such as ``uint16`` or ``int8``
    granularity   ``tensor``, ``channel``, ``channel:AXIS`` or ``block:SIZE``
    symmetric     whether the zero point is in the middle of the type
    method        how calibration reads the range: ``minmax``, ``percentile:99.9``, ``mse``, …
    range         the smallest and the largest value, instead of calibration
    scale         the scale itself, with ``zero_point``
    zero_point    the zero point itself, with ``scale``
    ============  =================================================================================
    """

    qtype: QType | str
    granularity: Granularity | str
    symmetric: bool
    method: Method | str | Mapping[str, Any]
    range: tuple[float, float]
    scale: float | tuple[float, ...]
    zero_point: int | tuple[int, ...]


def keep_float(plan: Plan, patterns: Iterable[str]) -> Plan:
    """Return the plan with the nodes that match kept in float.

    A pattern is a node's name, a glob or ``op:TYPE``. What such a node gives stays quantized for the nodes
    behind it that are.
    """
    nodes = _matching(patterns, {name: node.op_type for name, node in plan.nodes.items()}, "node")
    entries = {key: entry for key, entry in plan.entries.items() if key.consumer not in nodes}
    skipped = [Skipped(name, plan.nodes[name].op_type, KEPT_IN_FLOAT) for name in nodes]
    return _checked(
        replace(
            plan,
            nodes={name: node for name, node in plan.nodes.items() if name not in nodes},
            entries=_without_dangling(entries),
            skipped=(*plan.skipped, *skipped),
            barriers=tuple(dict.fromkeys((*plan.barriers, *nodes))),
        )
    )


def without(plan: Plan, patterns: Iterable[str]) -> Plan:
    """Return the plan without the entries of the tensors that match, or that take parameters from them."""
    tensors = _matching(patterns, {key.tensor: "" for key in plan.entries}, "tensor")
    entries = {key: entry for key, entry in plan.entries.items() if key.tensor not in tensors}
    rounded = tuple(key for key in plan.rounded if key[0] not in tensors)
    return _checked(replace(plan, entries=_without_dangling(entries), rounded=rounded))


def set_tensor(plan: Plan, pattern: str, consumer: str | None, settings: Settings) -> Plan:
    """Return the plan with other settings for a tensor, or for one consumer's view of it."""
    unknown = [name for name in settings if name not in Settings.__annotations__]
    if unknown:
        known = Settings.__annotations__
        hint = closest(unknown[0], known) or "."
        raise RecipeError(f"A plan has no setting {unknown[0]!r}{hint} Known: {', '.join(known)}.")
    tensors = _matching([pattern], {key.tensor: "" for key in plan.entries}, "tensor")
    keys = [key for key in plan.entries if key.tensor in tensors and consumer in (None, key.consumer)]
    if not keys:
        raise RecipeError(f"The plan has no entry for {Key(pattern, consumer)}.")
    if pattern not in tensors or len(tensors) > 1:  # those that follow from others are left alone
        keys = [key for key in keys if not isinstance(plan.entries[key], Shared | Derived | Dynamic)]
    if not keys:
        raise RecipeError(f"No entry that matches {pattern!r} has settings of its own.")
    given: dict[str, Any] = {**settings}
    override = Override(pattern, **given)
    changed = {key: override.changed(key, plan.entries[key]) for key in keys}
    return _checked(replace(plan, entries={**plan.entries, **changed}))


def _without_dangling(entries: dict[Key, Entry]) -> dict[Key, Entry]:
    """Return the entries without those that take their parameters from one that is gone."""
    while True:
        kept = {key: entry for key, entry in entries.items() if all(k in entries for k in _sources(entry))}
        if len(kept) == len(entries):
            return kept
        entries = kept


def _sources(entry: Entry) -> tuple[Key, ...]:
    match entry:
        case Shared():
            return (entry.key,)
        case Derived(x, w):
            return (Key(*x), Key(*w))
        case _:
            return ()


def _matching(patterns: Iterable[str], op_types: Mapping[str, str], what: str) -> dict[str, None]:
    """Return the names that match any pattern; a pattern that matches nothing is an error."""
    check_arguments(nodes=patterns)
    found: dict[str, None] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        kind = pattern.removeprefix("op:") if pattern.startswith("op:") else None
        names = [
            name
            for name, op_type in op_types.items()
            if (
                fnmatch.fnmatchcase(op_type, kind)
                if kind is not None
                else name == pattern or fnmatch.fnmatchcase(name, pattern)
            )
        ]
        if not names:
            raise RecipeError(
                f"The pattern {pattern!r} matches no {what} of the plan{closest(pattern, op_types) or '.'}"
            )
        found |= dict.fromkeys(names)
    return found


def _checked(plan: Plan) -> Plan:
    plan.check()
    return plan
