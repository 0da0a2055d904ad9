"""A plan in words: which nodes become what, where a tensor gets its parameters, and what stays float."""

from __future__ import annotations

from collections import Counter

from octavo.core import codec
from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Plan, Shared
from octavo.reporting.summary import absorbed_line, headline, kept_float, kept_lines, spelled, stored_lines
from octavo.reporting.text import clean, columns, many, markdown_table, some, tally


def entry_text(entry: Entry) -> str:
    """One entry in words: ``uint8 measured by minmax``, ``int8/channel from its values``."""
    match entry:
        case Measured(scheme):
            return (
                f"{spelled(scheme.qtype, scheme.granularity)} measured by {codec.method_text(scheme.method)}"
            )
        case Bounded(scheme, low, high):
            return f"{spelled(scheme.qtype, scheme.granularity)} bounded by {low:g} … {high:g}"
        case Shared(tensor, reader):
            return f"same as {Key(tensor, reader)}"
        case Derived(x, w):
            return f"int32, scale of {Key(*x)} × scale of {Key(*w)}"
        case Fixed(scheme):
            return f"{spelled(scheme.qtype, scheme.granularity)} as given"
        case Constant(scheme, algorithm):
            return f"{spelled(scheme.qtype, scheme.granularity)} from its values ({algorithm})"
        case Dynamic(qtype, twice, by_row):
            how = f"{' in two passes' if twice else ''}{', row by row,' if by_row else ''}"
            return f"{qtype}{how} while the model runs"


def plan_table(plan: Plan, *, tensors: bool = False) -> str:
    """What will be done and what stays float; with ``tensors`` a line for each tensor as well."""
    blocks = [headline(plan)]
    becomes: dict[tuple[str, str], list[str]] = {}
    for name, node in plan.nodes.items():
        becomes.setdefault((node.op_type, node.form), []).append(name)
    rows = [
        [len(names), op_type, form if form != op_type else "", some(names)]
        for (op_type, form), names in sorted(becomes.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    if rows:
        blocks.append(columns(rows, ["nodes", "op type", "becomes", "names"]))
    if plan.absorbed:
        blocks.append(absorbed_line(plan))
    if plan.skipped:
        blocks.append("\n".join(kept_lines(plan)))
    blocks += stored_lines(plan)
    if tensors and (plan.entries or plan.stored):
        blocks.append(columns(_tensors(plan), ["tensor", "how"]))
    else:
        blocks.append(_needs(plan))
    notes = [f"note: {clean(note, 600)}" for note in plan.notes]
    if plan.opset > 13:
        notes.append(f"note: its types need opset {plan.opset}; an older model is converted")
    if notes:
        blocks.append("\n".join(notes))
    return "\n\n".join(block for block in blocks if block)


def _tensors(plan: Plan) -> list[list[str]]:
    """Every tensor that is quantized or stored, and how."""
    stored = [
        [name, f"{spelled(one.scheme.qtype, one.scheme.granularity)} from its values, runs as float"]
        for name, one in plan.stored.items()
    ]
    return [[str(key), entry_text(entry)] for key, entry in plan.entries.items()] + stored


def _needs(plan: Plan) -> str:
    kinds = Counter(type(entry).__name__.lower() for entry in plan.entries.values())
    if not kinds:
        return ""
    return f"{many(len(plan.entries), 'tensor')}: {tally(kinds)}; calibration looks at {len(plan.needs())}"


def plan_markdown(plan: Plan) -> str:
    """The same as Markdown, with every tensor."""
    parts = [f"# Plan: {headline(plan)}"]
    nodes = [[name, node.op_type, node.form] for name, node in plan.nodes.items()]
    if nodes:
        parts += ["## Quantized", markdown_table(nodes, ["node", "op type", "becomes"])]
    kept = [
        [n.node, n.op_type, n.reason]
        for group in kept_float(plan.skipped)
        for n in plan.skipped
        if n.reason == group.reason
    ]
    if kept:
        parts += ["## Kept float", markdown_table(kept, ["node", "op type", "reason"])]
    tensors = _tensors(plan)
    if tensors:
        parts += ["## Tensors", markdown_table(tensors, ["tensor", "how"])]
    return "\n\n".join(parts) + "\n"
