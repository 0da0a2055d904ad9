"""What a run did, in a few lines: what is quantized, what stayed float and why, sizes, and types made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.core.granularity import Granularity, PerBlock, PerChannel
from octavo.core.plan import Bounded, Constant, Dynamic, Fixed, Key, Measured, Plan, Shared, Skipped
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.core.recipe import DynamicScheme, Recipe
from octavo.core.scheme import Scheme
from octavo.reporting.text import clean, many, markdown_table, size, some, tally

MOST_REASONS = 15  # lines of reasons before the rest is only counted


class Outcome(Protocol):
    """The part of a result that a summary is made of."""

    @property
    def plan(self) -> Plan:
        """What was decided."""
        ...

    @property
    def params(self) -> Mapping[Key, QParams]:
        """Scales and zero points."""
        ...

    @property
    def recipe(self) -> Recipe | None:
        """What was asked for; None where a plan was carried out."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks of the run."""
        ...

    @property
    def float_bytes(self) -> int:
        """The size of the float model."""
        ...

    @property
    def bytes(self) -> int:
        """The size of the quantized model."""
        ...


@dataclass(frozen=True)
class Kept:
    """Nodes that stay float for the same reason."""

    reason: str
    op_types: Counter[str]
    nodes: tuple[str, ...]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.nodes)

    def __str__(self) -> str:
        return f"{tally(self.op_types)}: {clean(self.reason, 400)} ({some(self.nodes)})"


def kept_float(skipped: Iterable[Skipped]) -> list[Kept]:
    """What stays float, by reason, the most frequent first."""
    groups: dict[str, list[Skipped]] = {}
    for node in skipped:
        groups.setdefault(node.reason, []).append(node)
    kept = [
        Kept(reason, Counter(n.op_type for n in nodes), tuple(n.node for n in nodes))
        for reason, nodes in groups.items()
    ]
    return sorted(kept, key=lambda group: (-group.count, group.reason))


def spelled(qtype: QType, granularity: Granularity) -> str:
    """``uint8``, ``int8/channel``, ``int4/block:32``: the axis is left out."""
    match granularity:
        case PerChannel():
            return f"{qtype}/channel"
        case PerBlock(block, _):
            return f"{qtype}/block:{block}"
        case _:
            return str(qtype)


def scheme_text(scheme: Scheme | DynamicScheme | None) -> str:
    """The type and granularity that a recipe asks for."""
    match scheme:
        case Scheme():
            return spelled(scheme.qtype, scheme.granularity)
        case DynamicScheme():
            return f"dynamic {scheme.qtype}"
        case None:
            return "float"


def produced(plan: Plan, params: Mapping[Key, QParams] | None = None) -> tuple[Counter[str], Counter[str]]:
    """The types of activations and of weights, counted; biases follow from both and are left out.

    With parameters these are what was made, without them what is planned.
    """
    made = params or {}
    activations: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for key, entry in plan.entries.items():
        found = made.get(key)
        match entry:
            case Constant(scheme=scheme):
                weights[_made(found, scheme)] += 1
            case Measured(scheme=scheme) | Bounded(scheme=scheme) | Fixed(scheme=scheme):
                activations[_made(found, scheme)] += 1
            case Dynamic(qtype):
                activations[f"dynamic {qtype}"] += 1
            case Shared():
                root = plan.entries.get(plan.root(key))
                if found is not None and not isinstance(root, Constant):
                    activations[spelled(found.qtype, found.granularity)] += 1
                elif isinstance(root, Measured | Bounded | Fixed):
                    activations[_made(None, root.scheme)] += 1
    return activations, weights


def _made(params: QParams | None, scheme: Scheme) -> str:
    if params is not None:
        return spelled(params.qtype, params.granularity)
    return spelled(scheme.qtype, scheme.granularity)


def audit(result: Outcome) -> list[str]:
    """Lines that set the types that were asked for beside those that were made."""
    if result.recipe is None:
        return []
    activations, weights = produced(result.plan, result.params)
    lines = []
    for what, asked, made in (
        ("weights", scheme_text(result.recipe.weights), weights),
        ("activations", scheme_text(result.recipe.activations), activations),
    ):
        total = sum(made.values())
        if not total:
            continue
        others = Counter({name: count for name, count in made.items() if name != asked})
        if others:
            lines.append(f"{what}: {asked} asked for, made {made[asked]} of {total} so; {tally(others)}")
        else:
            lines.append(f"{what}: {asked} asked for, made all {total} so")
    return lines


def headline(plan: Plan, params: Mapping[Key, QParams] | None = None) -> str:
    """``53 Conv, 16 Add, 1 Gemm quantized (uint8 × int8/channel, qdq)``."""
    if not plan.nodes:
        return "nothing quantized"
    activations, weights = produced(plan, params)
    parts = [counter.most_common(1)[0][0] for counter in (activations, weights) if counter]
    return f"{tally(plan.counts())} quantized ({' × '.join(parts) or 'no types'}, {plan.style.value})"


def sizes(result: Outcome) -> str:
    """``229 kB → 71.2 kB (0.31 ×)``."""
    ratio = f" ({result.bytes / result.float_bytes:.2f} ×)" if result.float_bytes else ""
    return f"{size(result.float_bytes)} → {size(result.bytes)}{ratio}"


def summary(result: Outcome) -> str:
    """The result in a few lines."""
    plan = result.plan
    lines = [headline(plan, result.params)]
    if plan.absorbed:
        lines.append(absorbed_line(plan))
    lines += kept_lines(plan)
    lines += stored_lines(plan)
    lines.append(f"size: {sizes(result)}")
    lines += audit(result)
    lines += [f"note: {clean(note, 600)}" for note in dict.fromkeys((*plan.notes, *result.notes))]
    return "\n".join(lines)


def absorbed_line(plan: Plan) -> str:
    """The Relu and Clip nodes that go, because a quantized range has their effect."""
    return (
        f"{len(plan.absorbed)} absorbed, as a quantized range cuts off there already: {some(plan.absorbed)}"
    )


def stored_lines(plan: Plan) -> list[str]:
    """``3 weights are stored as int8 and run as float``, where any are."""
    if not plan.stored:
        return []
    kinds = ", ".join(dict.fromkeys(str(one.scheme.qtype) for one in plan.stored.values()))
    verbs = "is stored as {} and runs" if len(plan.stored) == 1 else "are stored as {} and run"
    count = many(len(plan.stored), "weight")
    return [f"{count} {verbs.format(kinds)} as float: {some(plan.stored)}"]


def kept_lines(plan: Plan) -> list[str]:
    """``3 kept float:`` and a line for each reason."""
    if not plan.skipped:
        return ["nothing kept float"] if plan.nodes else []
    groups = kept_float(plan.skipped)
    if len(groups) == 1:
        return [f"{len(plan.skipped)} kept float: {groups[0]}"]
    lines = [f"{len(plan.skipped)} kept float:", *(f"  {group}" for group in groups[:MOST_REASONS])]
    if len(groups) > MOST_REASONS:
        rest = groups[MOST_REASONS:]
        lines.append(f"  {sum(group.count for group in rest)} more, for {many(len(rest), 'other reason')}")
    return lines


def markdown(result: Outcome, title: str = "Quantization report") -> str:
    """The result as a page of Markdown."""
    plan = result.plan
    activations, weights = produced(plan, result.params)
    rows = [
        ["quantized", f"{many(len(plan.nodes), 'node')}: {tally(plan.counts()) or 'none'}"],
        ["absorbed", many(len(plan.absorbed), "node")],
        ["kept float", many(len(plan.skipped), "node")],
        *([["stored", stored_lines(plan)[0]]] if plan.stored else []),
        ["size", sizes(result)],
        ["activations", tally(activations) or "float"],
        ["weights", tally(weights) or "float"],
        ["style", plan.style.value],
    ]
    kept = [
        [group.count, tally(group.op_types), group.reason, some(group.nodes, 10)]
        for group in kept_float(plan.skipped)
    ]
    notes = list(dict.fromkeys((*plan.notes, *result.notes, *audit(result))))
    parts = [f"# {_escaped(title)}", markdown_table(rows, ["what", "found"])]
    if kept:
        parts += ["## Kept float", markdown_table(kept, ["nodes", "op types", "reason", "names"])]
    if notes:
        parts += ["## Notes", "\n".join(f"- {_escaped(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return clean(text, 600).replace("<", "&lt;")
