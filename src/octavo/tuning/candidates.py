"""The candidates of a search: what is worth trying for a model and a target, with or without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from octavo.core.granularity import PerTensor
from octavo.core.plan import Plan
from octavo.core.qtypes import INT8
from octavo.core.recipe import COMPRESSED, Recipe
from octavo.core.scheme import MinMax, Scheme
from octavo.model.graph import query
from octavo.ops import CONVOLUTIONS, MATRIX_PRODUCTS
from octavo.pipeline.request import RecipeRequest
from octavo.targets import Target
from octavo.targets.defaults import DEFAULT_STEPS
from octavo.tuning.objective import Objective

REPAIRS = ("smoothquant", "clip", "rounding", "bias-correction")  # none costs speed or size
EQUALIZE = "equalize"  # one of them as well, where a scale for each tensor has to fit all channels
FEW_CONVOLUTIONS, MANY_CONVOLUTIONS = (
    3,
    16,
)  # convolutions of a graph: with so many the first one may stay float, or the first two
AVERAGED = MinMax(average=True)  # one odd sample of a hundred can make ranges five times as wide
_SHIFTS = "bias-correction"
DISTILL = "distill"
_GROUPS = (
    ("linear layers", MATRIX_PRODUCTS | {"Attention"}),
    ("convolutions", CONVOLUTIONS),
)


@dataclass(frozen=True)
class Candidate:
    """A way to quantize a model."""

    name: str
    recipe: Recipe
    idea: str
    faster_than: str | None = None  # the one that this is a try to outrun, by name
    refines: str | None = None  # the one whose numbers this fits further, by name
    float_layers: int = 0  # that stay float as they lose most

    @property
    def static(self) -> bool:
        """Whether it needs ranges from calibration."""
        return self.recipe.is_static


def stepped_round(start: Candidate, plan: Plan) -> list[Candidate]:
    """Return a static way with steps: with ranges cut in two ways.

    A model of linear layers is also smoothed at the cost of a few Muls.
    """
    recipe = start.recipe
    found = [_with_steps(start, "clipped", ("clip", _SHIFTS))]
    kinds = [node.op_type for node in plan.nodes.values()]
    if sum(kind in MATRIX_PRODUCTS for kind in kinds) > sum(kind in CONVOLUTIONS for kind in kinds):
        found.append(_with_steps(start, "smoothed", DEFAULT_STEPS))
    if isinstance(recipe.activations, Scheme) and recipe.activations.method == MinMax():
        averaged = replace(start, recipe=recipe.but(activations=recipe.activations.but(method=AVERAGED)))
        found.append(_with_steps(averaged, "averaged ranges", ("clip", _SHIFTS)))
    return found


def repaired(start: Candidate, best: Candidate) -> Candidate:
    """Return a static way with every step that is free, and with the ranges of the best one so far.

    A weight with a scale for each output channel loses nothing by the sizes of its channels: equalizing them
    helps where one scale has to fit them all.
    """
    recipe = start.recipe.but(activations=best.recipe.activations)
    weights = recipe.weights
    is_even = isinstance(weights, Scheme) and isinstance(weights.granularity, PerTensor)
    steps = (EQUALIZE, *REPAIRS) if is_even else REPAIRS
    return _with_steps(replace(start, recipe=recipe), "repaired", steps)


def _with_steps(start: Candidate, words: str, more: Sequence[str]) -> Candidate:
    given = start.recipe.steps
    names = {text.partition(":")[0].strip() for text in given}
    steps = (*given, *(text for text in more if text.partition(":")[0] not in names))
    idea = f"the steps {', '.join(steps)}"
    return Candidate(f"{start.name}, {words}", start.recipe.but(steps=steps), idea)


def distilled(candidate: Candidate) -> Candidate:
    """Return the same with its last layers fitted to the float model's probabilities."""
    recipe = candidate.recipe
    return replace(
        candidate,
        name=f"{candidate.name}, distilled",
        recipe=recipe.but(steps=(*recipe.steps, DISTILL)),
        idea=f"{candidate.idea}; the layers of scores are fitted to float's probabilities",
        refines=candidate.name,
    )


def mixed_round(start: Candidate, plan: Plan) -> list[Candidate]:
    """A static way with its linear layers at run time, where it has other operators too."""
    linear = linear_layers(plan)
    if not linear:
        return []
    idea = "ranges of linear layers are found while the model runs; all others are static"
    return [Candidate("mixed", start.recipe.but(dynamic_nodes=linear), idea)]


def dynamic_round(target: Target, base: Recipe | None) -> list[Candidate]:
    """Return the way that needs no data, with what a base lets in."""
    if not target.placement.dynamic_linear:
        return []
    recipe = target.dynamic_recipe
    if base is not None:
        recipe = recipe.but(include=base.include, exclude=base.exclude, op_types=base.op_types)
    return [Candidate("dynamic", recipe, "ranges found while the model runs; matrix products only")]


def with_rest_compressed(candidate: Candidate) -> Candidate:
    """The same with the weights that it leaves in float compressed to int8; the kernels are the same."""
    idea = f"{candidate.idea}; other weights are compressed to int8"
    return replace(candidate, recipe=candidate.recipe.but(compressed=INT8), idea=idea)


def without_compressed(candidate: Candidate) -> Candidate:
    """Return the same with the weights that it leaves float as they are."""
    return Candidate(
        f"{candidate.name}, other weights float",
        candidate.recipe.but(compressed=None),
        f"{candidate.idea.partition(';')[0]}; what stays float is as it was",
    )


def compressed_round(target: Target, base: Recipe) -> list[Candidate]:
    """The float model in a smaller file, where the runtime that dequantizes its weights is the one here."""
    if not target.runs_here or is_restricted(base):
        return []
    recipe = COMPRESSED.but(target=target.name, exclude=base.exclude)
    return [
        Candidate("compressed", recipe, "nothing is quantized; weights are compressed to int8, run as float")
    ]


def is_restricted(base: Recipe) -> bool:
    """Whether a base names what may be touched, and nothing else."""
    return bool(base.include) or base.op_types is not None


def linear_layers(plan: Plan) -> tuple[str, ...]:
    """Return the layers that could find their ranges at run time, where other operators are quantized too."""
    found = tuple(name for name, node in plan.nodes.items() if node.op_type in MATRIX_PRODUCTS)
    return found if len(found) < len(plan.nodes) else ()


def language_round(
    target: Target, base: Recipe, objective: Objective, *, has_data: bool, thorough: bool
) -> list[Candidate]:
    """Return ways of few bits for a language model: weights in blocks, activations float or rounded.

    Tables that are looked up have 8 bits, which costs next to nothing and lets one that also makes the logits
    be stored once. What the objective is likely to want comes first.
    """
    if not target.accepts.contrib_ops:
        return []
    four = _blocks(target, base, has_data, "4 bits", "weights of 4 bits in blocks of 32, tables of 8", {})
    found = {
        Objective.BALANCED: [four],
        Objective.PREFILL: [four],
        Objective.DECODE: [],
        Objective.SIZE: [],
    }[objective]
    more: list[tuple[str, str, dict[str, Any]]] = [
        ("4 bits, symmetric", "the same without zero points: fewer bytes to read", {"symmetric": True}),
        ("4 bits, tables too", "the same with tables and logits of 4 bits", {"head": 4, "embeddings": 4}),
        ("4 bits, level 0", "the same, computed with float activations", {"accuracy_level": 0}),
    ]
    if objective is Objective.SIZE:
        more.insert(0, more.pop(1))
    if thorough and has_data:
        more.append(("4 bits on average", "2, 4 or 8 bits for each layer by its sensitivity", {"bits": 4}))
    made = [_blocks(target, base, has_data, *one) for one in more]
    rest = [] if four in found else [four]
    return [*found, made[0], *rest, *made[1:]]


def _blocks(
    target: Target, base: Recipe, has_data: bool, name: str, idea: str, changes: dict[str, Any]
) -> Candidate:
    settings: Any = {"weights": "int4", "embeddings": 8, **changes}
    recipe, _ = RecipeRequest(None, target, settings).resolve(static=has_data)
    limited = recipe.but(include=base.include, exclude=base.exclude, op_types=base.op_types)
    return Candidate(name, limited, idea)


@dataclass(frozen=True)
class Group:
    """A kind of operators, by the patterns and the names of its nodes."""

    words: str
    patterns: tuple[str, ...]
    nodes: frozenset[str]


def groups(plan: Plan, target: Target) -> list[Group]:
    """Kinds of operators that might not pay; never all products that are quantized."""
    found = []
    for words, kinds in (*_GROUPS, ("operators between products", target.placement.elementwise)):
        members = {name: node.op_type for name, node in plan.nodes.items() if node.op_type in kinds}
        rest = [
            n
            for n, node in plan.nodes.items()
            if node.op_type in target.placement.linear and n not in members
        ]
        if members and rest:
            patterns = tuple(f"op:{kind}" for kind in sorted(set(members.values())))
            found.append(Group(words, patterns, frozenset(members)))
    return found


def without_groups(candidate: Candidate, left: Sequence[Group]) -> Candidate:
    """Return the same with kinds of operators left float."""
    patterns = [pattern for group in left for pattern in group.patterns]
    nodes = frozenset(node for group in left for node in group.nodes)
    words = " and ".join(group.words for group in left)
    found = _without(candidate, patterns, nodes, words, "integers may not pay there")
    return replace(found, faster_than=candidate.name)


def without_layers(candidate: Candidate, nodes: Sequence[str]) -> Candidate:
    """Return the same with some more layers left float; the name counts all of them."""
    before, count = candidate.float_layers, candidate.float_layers + len(nodes)
    base = replace(candidate, name=candidate.name.removesuffix(f", {_layers(before)} float"))
    made = _without(base, nodes, frozenset(nodes), _layers(count), "the layers that lose most")
    return replace(made, float_layers=count)


def _layers(count: int) -> str:
    return f"{count} layer{'s' if count > 1 else ''}"


def without_first(candidate: Candidate, plan: Plan, model: ir.Model) -> list[Candidate]:
    """The same with the first quantized convolutions of each graph float: their noise goes through all."""
    found = _convolutions(model)
    planned = [[name for name in names if _is_conv(plan, name)] for names in found]
    firsts = [
        names[: 2 if len(names) >= MANY_CONVOLUTIONS else 1]
        for names in planned
        if len(names) >= FEW_CONVOLUTIONS
    ]
    return _without_convolutions(candidate, [name for names in firsts for name in names])


def without_start(candidate: Candidate, plan: Plan, model: ir.Model) -> list[Candidate]:
    """The same with the convolutions float that read the inputs: integers are made of these for them alone.

    They have few channels, and whether integers pay there is a matter of their shape.
    """
    starts = [
        names[0]
        for names in _convolutions(model)
        if sum(_is_conv(plan, n) for n in names) >= FEW_CONVOLUTIONS
    ]
    return _without_convolutions(candidate, [name for name in starts if _is_conv(plan, name)])


def _convolutions(model: ir.Model) -> list[list[str]]:
    """Return the names of the convolutions of each graph, in order."""
    found: dict[ir.Graph | ir.Function | None, list[str]] = {}
    for node in query.nodes(model):
        if node.op_type in CONVOLUTIONS and not node.domain:
            found.setdefault(node.graph, []).append(node.name or "")
    return list(found.values())


def _is_conv(plan: Plan, name: str) -> bool:
    return name in plan.nodes and plan.nodes[name].op_type in CONVOLUTIONS


def _without_convolutions(candidate: Candidate, nodes: Sequence[str]) -> list[Candidate]:
    if not nodes:
        return []
    words = "first convolution" if len(nodes) == 1 else f"first {len(nodes)} convolutions"
    return [
        _without(
            candidate, nodes, frozenset(nodes), words, "errors of the first layers pass through all others"
        )
    ]


def _without(
    candidate: Candidate, patterns: Sequence[str], nodes: frozenset[str], words: str, why: str
) -> Candidate:
    recipe = candidate.recipe
    changed = recipe.but(
        exclude=(*recipe.exclude, *patterns),
        dynamic_nodes=tuple(name for name in recipe.dynamic_nodes if name not in nodes),
    )
    return Candidate(f"{candidate.name}, {words} float", changed, f"{why}: {', '.join(patterns)}")
