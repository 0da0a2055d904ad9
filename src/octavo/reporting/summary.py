"""What a run did, in a few lines: what is quantized, what is kept in float and why, sizes and types."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.core.granularity import Granularity, PerBlock, PerChannel
from octavo.core.plan import (
    Bounded,
    Constant,
    Dynamic,
    Fixed,
    HalfCompute,
    HalfStorage,
    Key,
    Measured,
    Plan,
    Shared,
    Skipped,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.core.recipe import DynamicScheme, Recipe
from octavo.core.scheme import Scheme
from octavo.reporting.text import (
    clean,
    escaped,
    many,
    markdown_table,
    notes_lines,
    notes_markdown,
    size,
    some,
    tally,
)

_NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]\d+)?")
_LISTED_REASONS = 15  # for keeping nodes in float; the nodes of further reasons are only counted


class Outcome(Protocol):
    """The part of a result that a summary is made of."""

    @property
    def plan(self) -> Plan:
        """Return what was decided."""

    @property
    def params(self) -> Mapping[Key, QParams]:
        """Return scales and zero points."""

    @property
    def recipe(self) -> Recipe | None:
        """Return what was requested; None where a plan was carried out."""

    @property
    def notes(self) -> Sequence[str]:
        """Return remarks on the run."""

    @property
    def float_bytes(self) -> int:
        """Return the size of the float model."""

    @property
    def bytes(self) -> int:
        """Return the size of the quantized model."""


@dataclass(frozen=True)
class Kept:
    """Nodes that are kept in float for the same reason."""

    reason: str
    op_types: Counter[str]
    nodes: tuple[str, ...]

    @property
    def count(self) -> int:
        """Return the number of nodes."""
        return len(self.nodes)

    def __str__(self) -> str:
        return f"{tally(self.op_types)}: {clean(self.reason, 400)} ({some(self.nodes)})"


def kept_in_float(skipped: Iterable[Skipped]) -> list[Kept]:
    """Return what is kept in float, by reason, the most frequent first.

    Reasons that differ in numbers alone are one, told with the numbers of the first node.
    """
    groups: dict[str, list[Skipped]] = {}
    for node in skipped:
        groups.setdefault(_NUMBER.sub("0", node.reason), []).append(node)
    kept = [
        Kept(
            nodes[0].reason + (", or the like" if len({n.reason for n in nodes}) > 1 else ""),
            Counter(n.op_type for n in nodes),
            tuple(n.node for n in nodes),
        )
        for nodes in groups.values()
    ]
    return sorted(kept, key=lambda group: (-group.count, group.reason))


def type_text(qtype: QType, granularity: Granularity) -> str:
    """Return a type with its granularity: ``uint8``, ``int8/channel``, ``int4/block:32``."""
    match granularity:
        case PerChannel():
            return f"{qtype}/channel"
        case PerBlock(block, _):
            return f"{qtype}/block:{block}"
        case _:
            return str(qtype)


def scheme_text(scheme: Scheme | DynamicScheme | None) -> str:
    """Return the type and granularity that a recipe requests."""
    match scheme:
        case Scheme():
            return type_text(scheme.qtype, scheme.granularity)
        case DynamicScheme():
            return f"dynamic {scheme.qtype}"
        case None:
            return "float"


def type_words(text: str) -> str:
    """Return a type in words: ``int8 per channel`` for ``int8/channel``."""
    name, _, granularity = text.partition("/")
    if granularity.startswith("block:"):
        return f"{name} per block of {granularity.removeprefix('block:')}"
    return f"{name} per {granularity}" if granularity else name


def produced(plan: Plan, params: Mapping[Key, QParams] | None = None) -> tuple[Counter[str], Counter[str]]:
    """Count the types of activations and of weights; biases follow from both and are left out.

    With parameters these are the actual types, without them the planned ones.
    """
    actual = params or {}
    activations: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for key, entry in plan.entries.items():
        found = actual.get(key)
        match entry:
            case Constant(scheme=scheme):
                weights[_type_of(found or scheme)] += 1
            case Measured(scheme=scheme) | Bounded(scheme=scheme) | Fixed(scheme=scheme):
                activations[_type_of(found or scheme)] += 1
            case Dynamic(qtype):
                activations[f"dynamic {qtype}"] += 1
            case Shared():
                root = plan.entries.get(plan.root(key))
                if found is not None and not isinstance(root, Constant):
                    activations[_type_of(found)] += 1
                elif isinstance(root, Measured | Bounded | Fixed):
                    activations[_type_of(root.scheme)] += 1
    return activations, weights


def _type_of(one: QParams | Scheme) -> str:
    return type_text(one.qtype, one.granularity)


def type_lines(result: Outcome) -> list[str]:
    """Return requested types and how many tensors have them: ``weights: int8 per channel (12 of 12)``."""
    if result.recipe is None:
        return []
    activations, weights = produced(result.plan, result.params)
    lines = []
    for what, requested, actual in (
        ("weights", scheme_text(result.recipe.weights), weights),
        ("activations", scheme_text(result.recipe.activations), activations),
    ):
        total = sum(actual.values())
        others = [f", {type_words(name)} ({count})" for name, count in actual.items() if name != requested]
        if total:
            lines.append(f"{what}: {type_words(requested)} ({actual[requested]} of {total}){''.join(others)}")
    return lines


def headline(plan: Plan, params: Mapping[Key, QParams] | None = None) -> str:
    """Return what is quantized: ``53 Conv, 16 Add, 1 Gemm quantized (uint8 × int8/channel, qdq)``."""
    if not plan.nodes:
        return "nothing quantized"
    activations, weights = produced(plan, params)
    parts = [counter.most_common(1)[0][0] for counter in (activations, weights) if counter]
    return f"{tally(plan.counts())} quantized ({' × '.join(parts) or 'no types'}, {plan.style.value})"


def sizes(result: Outcome) -> str:
    """Return both sizes: ``229 kB → 71.2 kB (0.31 ×)``."""
    ratio = f" ({result.bytes / result.float_bytes:.2f} ×)" if result.float_bytes else ""
    return f"{size(result.float_bytes)} → {size(result.bytes)}{ratio}"


def summary(result: Outcome) -> str:
    """Return the result in a few lines."""
    plan = result.plan
    lines = [] if only_half(plan) else [headline(plan, result.params)]
    if plan.fused:
        lines.append(fused_line(plan))
    lines += [] if only_half(plan) else kept_lines(plan)
    lines += [*compressed_lines(plan), *half_lines(plan)]
    lines.append(f"size of the weights: {sizes(result)}")
    lines += type_lines(result)
    lines += notes_lines(dict.fromkeys((*plan.notes, *result.notes)))
    return "\n".join(lines)


def fused_line(plan: Plan) -> str:
    """Return which Relu and Clip nodes are removed, because a quantized range has their effect."""
    return f"{len(plan.fused)} Relu or Clip fused into the quantized range: {some(plan.fused)}"


def compressed_lines(plan: Plan) -> list[str]:
    """Return which weights are compressed: ``3 weights compressed to int8, dequantized at load: …``."""
    if not plan.compressed:
        return []
    types = ", ".join(dict.fromkeys(str(one.scheme.qtype) for one in plan.compressed.values()))
    count = many(len(plan.compressed), "weight")
    return [f"{count} compressed to {types}, dequantized at load: {some(plan.compressed)}"]


def only_half(plan: Plan) -> bool:
    """Whether a plan quantizes nothing and writes 16-bit floats."""
    return plan.half is not None and not plan.nodes


def half_lines(plan: Plan) -> list[str]:
    """Return what is in 16-bit floats, and what stays in float32 and why."""
    match plan.half:
        case HalfStorage(float_type, weights, kept):
            line = f"{many(len(weights), 'weight')} stored in {float_type.value}, restored to float32 at load"
            if not weights and not kept:
                line = f"no weight stored in {float_type.value}: none is large enough to gain by it"
        case HalfCompute(float_type, nodes, kept, _, io):
            ends = ", inputs and outputs too" if io else ""
            line = f"{many(len(nodes), 'node')} computed in {float_type.value}{ends}"
        case None:
            return []
    reasons = Counter(kept.values()).most_common(_LISTED_REASONS)
    listed = [f"  {count} × {reason}" for reason, count in reasons]
    return [line, *([f"{len(kept)} kept in float32:", *listed] if kept else [])]


def kept_lines(plan: Plan) -> list[str]:
    """Return ``3 kept in float:`` and a line for each reason."""
    if not plan.skipped:
        return ["nothing kept in float"] if plan.nodes else []
    groups = kept_in_float(plan.skipped)
    if len(groups) == 1:
        return [f"{len(plan.skipped)} kept in float: {groups[0]}"]
    lines = [f"{len(plan.skipped)} kept in float:", *(f"  {group}" for group in groups[:_LISTED_REASONS])]
    if len(groups) > _LISTED_REASONS:
        rest = groups[_LISTED_REASONS:]
        lines.append(f"  {sum(group.count for group in rest)} more, for {many(len(rest), 'other reason')}")
    return lines


def markdown(result: Outcome, title: str = "Quantization report") -> str:
    """Return the result as a page of Markdown."""
    plan = result.plan
    activations, weights = produced(plan, result.params)
    rows = [
        ["quantized", f"{many(len(plan.nodes), 'node')}: {tally(plan.counts()) or 'none'}"],
        ["fused", many(len(plan.fused), "node")],
        ["kept in float", many(len(plan.skipped), "node")],
        *([["compressed", compressed_lines(plan)[0]]] if plan.compressed else []),
        *([["16-bit floats", half_lines(plan)[0]]] if plan.half is not None else []),
        ["size of the weights", sizes(result)],
        ["activations", tally(activations) or "float"],
        ["weights", tally(weights) or "float"],
        ["format", plan.style.value],
    ]
    kept = [
        [group.count, tally(group.op_types), group.reason, some(group.nodes, 10)]
        for group in kept_in_float(plan.skipped)
    ]
    notes = dict.fromkeys((*plan.notes, *result.notes, *type_lines(result)))
    parts = [f"# {escaped(title)}", markdown_table(rows, ["what", "value"])]
    if kept:
        parts += ["## Kept in float", markdown_table(kept, ["nodes", "op types", "reason", "names"])]
    return "\n\n".join([*parts, *notes_markdown(notes)]) + "\n"
