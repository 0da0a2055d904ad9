"""A plan in words: which nodes become what, where a tensor gets its parameters, what is kept in float."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from octavo.core import codec
from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Plan, Shared
from octavo.reporting.summary import (
    compressed_lines,
    fused_line,
    half_lines,
    headline,
    kept_lines,
    only_half,
    scheme_text,
)
from octavo.reporting.text import columns, many, notes_lines, some, tally


def entry_text(entry: Entry) -> str:
    """Return an entry in words: ``uint8 measured by min/max``, ``int8/channel from its values (rtn)``."""
    match entry:
        case Derived(x, w):
            return f"int32, scale of {Key(*x)} × scale of {Key(*w)}"
        case Shared():
            return origin_text(entry)
        case Dynamic(qtype, twice, by_row):
            split = " split into high and low part" if twice else ""
            rows = ", a scale for each row" if by_row else ""
            return f"{qtype}{split}{rows}, {origin_text(entry)}"
        case _:
            return f"{scheme_text(entry.scheme)} {origin_text(entry)}"


def origin_text(entry: Entry) -> str:
    """Return where scale and zero point come from, for where the type is told beside it."""
    match entry:
        case Measured(scheme):
            return f"measured by {method_words(codec.method_text(scheme.method))}"
        case Bounded(_, low, high):
            return f"bounded by {low:g} … {high:g}"
        case Shared(tensor, reader):
            return f"same as {Key(tensor, reader)}"
        case Derived():
            return "scale of the input × scale of the weight"
        case Fixed():
            return "as given"
        case Constant(_, algorithm):
            return f"from its values ({algorithm or 'rtn'})"
        case Dynamic():
            return "range found while the model runs"


_METHOD_NAMES = {"minmax": "min/max", "mse": "MSE"}


def method_words(method: str | Mapping[str, Any]) -> str:
    """Return a calibration method of a recipe in words: ``averaged min/max``, ``percentile 99.99``."""
    if isinstance(method, str):
        name, _, setting = method.partition(":")
        return f"{_METHOD_NAMES.get(name, name)}{f' {setting}' if setting else ''}"
    ((name, settings),) = method.items()
    words = [
        key.replace("_", " ") if value is True else f"{key.replace('_', ' ')} {value}"
        for key, value in settings.items()
        if value is not False and (name, key) != ("minmax", "average")
    ]
    averaged = "averaged " if name == "minmax" and settings.get("average") else ""
    return averaged + ", ".join([_METHOD_NAMES.get(name, name), *words])


def plan_table(plan: Plan, *, tensors: bool = False) -> str:
    """Return what will be done and what is kept in float; with ``tensors`` a line for each tensor as well."""
    blocks = [] if only_half(plan) else [headline(plan)]
    becomes: dict[tuple[str, str], list[str]] = {}
    for name, node in plan.nodes.items():
        becomes.setdefault((node.op_type, node.lowering), []).append(name)
    rows = [
        [len(names), op_type, lowering if lowering != op_type else "", some(names)]
        for (op_type, lowering), names in sorted(becomes.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    if rows:
        head = ["nodes", "op type", "becomes", "names"]
        if not any(row[2] for row in rows):  # every operator stays what it is
            rows, head = [[*row[:2], row[3]] for row in rows], [*head[:2], head[3]]
        blocks.append(columns(rows, head))
    if plan.fused:
        blocks.append(fused_line(plan))
    if plan.skipped and not only_half(plan):
        blocks.append("\n".join(kept_lines(plan)))
    blocks += ["\n".join(compressed_lines(plan)), "\n".join(half_lines(plan))]
    if tensors and (plan.entries or plan.compressed):
        blocks.append(columns(_tensors(plan), ["tensor", "how"]))
    else:
        blocks.append(_tensor_counts(plan))
    notes = notes_lines(plan.notes)
    if plan.opset > 13:
        notes.append(f"note: its types need opset {plan.opset}; an older model is converted")
    if notes:
        blocks.append("\n".join(notes))
    return "\n\n".join(block for block in blocks if block)


def _tensors(plan: Plan) -> list[list[str]]:
    """Return every tensor that is quantized or compressed, and how."""
    compressed = [
        [name, f"{scheme_text(one.scheme)} from its values, dequantized at load"]
        for name, one in plan.compressed.items()
    ]
    return [[str(key), entry_text(entry)] for key, entry in plan.entries.items()] + compressed


def _tensor_counts(plan: Plan) -> str:
    kinds = Counter(type(entry).__name__.lower() for entry in plan.entries.values())
    if not kinds:
        return ""
    return f"{many(len(plan.entries), 'tensor')}: {tally(kinds)}; calibration measures {len(plan.needs())}"
