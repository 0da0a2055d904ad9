"""What a target or the runtime can't run, or runs wrongly, though a recipe or an override can ask for it.

The runtime checks little of this itself: a wrong channel axis gives wrong numbers where the weight is square,
8-bit weights in blocks beside 8-bit activations fail when the model runs. So these are errors before anything
is written, and each names the nearest choice that is legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Bounded, Constant, Entry, Fixed, Key, Measured, Quantized
from octavo.core.qtypes import QType, qtype
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.ops import MATMUL_NBITS, Act, Kind, Lowering, OpRule, Weight, axis_of, rule_of
from octavo.targets import Target

# ---- a recipe


def fitted(recipe: Recipe, target: Target) -> Recipe:
    """Return the recipe with what it leaves open set as the target needs it, once the target accepts it."""
    accept(recipe, target)
    changes: dict[str, object] = {}
    if recipe.is_weight_only and recipe.style is Style.QOPERATOR and not target.accepts.contrib_ops:
        changes["style"] = Style.QDQ  # no MatMulNBits there
    if recipe.quantize_bias and not target.accepts.int32_biases:
        changes["quantize_bias"] = False
    activations = recipe.activations
    if (
        target.accepts.min_range is not None
        and isinstance(activations, Scheme)
        and activations.min_range is None
    ):
        changes["activations"] = activations.but(min_range=target.accepts.min_range)
    return recipe.but(**changes) if changes else recipe


def accept(recipe: Recipe, target: Target) -> None:
    """Raise where a recipe asks for styles, types or zero points that a target does not take."""
    name, style, activations = target.name, recipe.style, recipe.activations
    is_operator = recipe.is_weight_only and style is Style.QOPERATOR  # MatMulNBits, where a target has it
    if style not in target.accepts.styles and not is_operator:
        legal = ", ".join(s.value for s in target.accepts.styles)
        raise RecipeError(f"Target {name} does not take {style.value} models; choose one of: {legal}.")
    if isinstance(activations, DynamicScheme) and not target.placement.dynamic_linear:
        raise RecipeError(
            f"Target {name} does not quantize activations at run time; give calibration data, or choose"
            " activations none to quantize weights only."
        )
    schemes = [("weights", recipe.weights, target.accepts.weight_types, target.accepts.symmetric_weights)]
    if isinstance(activations, Scheme):
        schemes.append(
            (
                "activations",
                activations,
                target.accepts.activation_types,
                target.accepts.symmetric_activations,
            )
        )
    for what, scheme, legal_types, _ in schemes:
        if not legal_types:
            raise RecipeError(
                f"Quantized {what} do not pay off on target {name}; choose {what} none, or another target."
            )
        if scheme.qtype.name not in legal_types:
            raise RecipeError(
                f"Target {name} does not take {scheme.qtype} {what}; choose"
                f" {nearest(scheme.qtype, legal_types)}{_others(legal_types)}."
            )
    grain = str(recipe.weights.granularity).partition(":")[0]
    if grain not in target.accepts.granularities:
        raise RecipeError(
            f"Target {name} does not take weights with a scale per {grain}; choose"
            f" {target.accepts.granularities[-1]}, or one of: {', '.join(target.accepts.granularities)}."
        )
    for what, scheme, _, must in schemes:
        if must and not _is_centred(scheme):
            signed = "" if scheme.qtype.signed else " of a signed type"
            raise RecipeError(
                f"Target {name} takes {what} with zero point 0 only; choose symmetric: true for"
                f" {what}{signed}."
            )
        if not is_operator and style is not Style.QDQ and (scheme.qtype.bits != 8 or scheme.qtype.is_float):
            raise RecipeError(
                f"{scheme.qtype} {what} exist in the qdq style only; choose style qdq,{_or_blocks(recipe)} or"
                " an 8-bit integer type."
            )
    _accept_combination(recipe)


def _or_blocks(recipe: Recipe) -> str:
    """Return the remark that weights beside float activations come in blocks too."""
    return " blocks (per='block:32')," if recipe.activations is None else ""


def _accept_combination(recipe: Recipe) -> None:
    """Raise where the settings of a recipe contradict each other."""
    style, activations = recipe.style, recipe.activations
    if (
        activations is None
        and style is not Style.QDQ
        and not (recipe.is_weight_only and style is Style.QOPERATOR)
    ):
        raise RecipeError(
            f"The {style.value} style needs quantized activations; choose the style qdq for weights only, or"
            " give activations a type."
        )
    if isinstance(activations, DynamicScheme) and style is not Style.INTEGER:
        raise RecipeError(
            "Activations quantized at run time exist in the integer style only; choose style integer."
        )
    if recipe.weights.qtype.is_float and isinstance(activations, Scheme) and not activations.qtype.is_float:
        raise RecipeError(
            "float8 weights go with float8 activations; choose float8e4m3fn for both, or int8 weights."
        )


def nearest(kind: QType, legal: Sequence[str]) -> str:
    """Return the legal type most like another: of its kind, as wide, as signed."""

    def distance(name: str) -> tuple[bool, int, bool]:
        other = qtype(name)
        return other.is_float != kind.is_float, abs(other.bits - kind.bits), other.signed != kind.signed

    return min(legal, key=distance)


def _is_centred(scheme: Scheme) -> bool:
    """Whether a scheme always has the zero point 0."""
    return scheme.qtype.is_float or (scheme.symmetric and scheme.qtype.signed)


# ---- entries, with all overrides applied


def check(
    entries: Mapping[Key, Entry],
    nodes: Iterable[ir.Node],
    quantized: Mapping[str, Quantized],
    recipe: Recipe,
    target: Target,
) -> None:
    """Raise for the first entry that can't be written, saying which and what to choose instead."""
    by_name = {node.name: node for node in nodes}
    blocks = {name for name, node in quantized.items() if node.lowering == MATMUL_NBITS.op_type}
    for key, entry in entries.items():
        if key.consumer in blocks:
            continue
        node = by_name.get(key.consumer) if key.consumer is not None else None
        match entry:
            case Measured(scheme) | Bounded(scheme):
                _activation(key, scheme, (), recipe, target)
            case Constant(scheme):
                _constant(key, scheme, (), node, recipe, target)
            case Fixed(scheme, _, zero_point):
                _constant(key, scheme, zero_point, node, recipe, target)
            case _:
                pass


def check_tensors(entries: Mapping[Key, Entry], nodes: Iterable[ir.Node], recipe: Recipe) -> None:
    """Raise where weights that all their consumers read quantized would be read wrongly by one of these."""
    found = {
        key.tensor: (key, entry.scheme)
        for key, entry in entries.items()
        if isinstance(entry, Constant | Fixed) and key.consumer is None
    }
    if recipe.style is Style.QDQ:
        for key, scheme in found.values():
            _blocks(key, scheme, recipe)
    for node in nodes:
        rule = rule_of(node)
        for index, value in enumerate(node.inputs if rule is not None else ()):
            role = rule.role(index) if rule is not None else None
            if not isinstance(role, Weight) or value is None or value.name not in found:
                continue
            if axis_of(role.axis, node) is not None:
                _channels(*found[value.name], role, node)


def _others(legal_types: Sequence[str]) -> str:
    return f", or one of: {', '.join(legal_types)}" if len(legal_types) > 1 else ""


def _activation(
    key: Key, scheme: Scheme, zero_point: tuple[int, ...], recipe: Recipe, target: Target
) -> None:
    if not isinstance(scheme.granularity, PerTensor):
        raise RecipeError(
            f"{key}: activations per {scheme.granularity} have no kernel; choose granularity tensor."
        )
    _type(key, scheme.qtype, target.accepts.activation_types, "activation", target)
    if target.accepts.symmetric_activations:
        _centred(key, scheme, zero_point, target)
    activations = recipe.activations
    if recipe.style is not Style.QDQ and activations is not None and scheme.qtype != activations.qtype:
        raise RecipeError(
            f"{key}: the {recipe.style.value} style has one type for all activations, {activations.qtype};"
            f" choose style qdq for {scheme.qtype} here."
        )


def _type(key: Key, kind: QType, legal: tuple[str, ...], what: str, target: Target) -> None:
    if kind.name not in legal:
        raise RecipeError(
            f"{key}: target {target.name} does not take {kind} {what}s; choose {nearest(kind, legal)}, or one"
            f" of: {', '.join(legal)}."
        )


def _centred(key: Key, scheme: Scheme, zero_point: tuple[int, ...], target: Target) -> None:
    if any(zero_point) or (not zero_point and not _is_centred(scheme)):
        raise RecipeError(f"{key}: target {target.name} takes zero point 0 only; choose symmetric.")


def _constant(
    key: Key,
    scheme: Scheme,
    zero_point: tuple[int, ...],
    node: ir.Node | None,
    recipe: Recipe,
    target: Target,
) -> None:
    rule = rule_of(node) if node is not None else None
    role = _role(rule, node, key.tensor)
    if isinstance(role, Act) or node is None or rule is None:
        _activation(key, scheme, zero_point, recipe, target)
        return
    _type(key, scheme.qtype, target.accepts.weight_types, "weight", target)
    if target.accepts.symmetric_weights:
        _centred(key, scheme, zero_point, target)
    if isinstance(role, Weight) and rule.kind is not Kind.RECURRENT:
        _channels(key, scheme, role, node)
        _blocks(key, scheme, recipe)
    lowering = rule.lowerings.get(recipe.style)
    if lowering is not None:
        _kernel(key, scheme, zero_point, lowering, recipe)


def _role(rule: OpRule | None, node: ir.Node | None, tensor: str) -> object:
    if rule is None or node is None:
        return None
    index = next((i for i, v in enumerate(node.inputs) if v is not None and v.name == tensor), None)
    return rule.role(index) if index is not None else None


def _channels(key: Key, scheme: Scheme, role: Weight, node: ir.Node) -> None:
    """Raise where scales lie along another axis than the operator's channels."""
    axis = axis_of(role.axis, node)
    if isinstance(scheme.granularity, PerChannel) and scheme.granularity.axis != axis:
        right = "tensor" if axis is None else f"channel:{axis}"
        where = "no axis" if axis is None else f"axis {axis}"
        raise RecipeError(
            f"{key}: {node.op_type} has its channels on {where}, and scales"
            f" per {scheme.granularity} would give wrong results; choose granularity {right}."
        )


def _blocks(key: Key, scheme: Scheme, recipe: Recipe) -> None:
    """Raise where weights in blocks have no kernel beside these activations."""
    if not isinstance(scheme.granularity, PerBlock):
        return
    if recipe.style is not Style.QDQ:
        raise RecipeError(
            f"{key}: blocks exist in the qdq style only; choose style qdq, or granularity channel."
        )
    activations = recipe.activations
    kinds = (scheme.qtype, activations.qtype) if activations is not None else ()
    if recipe.listing.unfused_blocks:
        return
    if kinds and all(kind.bits == 8 and not kind.is_float for kind in kinds):
        raise RecipeError(
            f"{key}: {kinds[0]} weights in blocks beside {kinds[1]} activations fail in the runtime; choose"
            " granularity channel, 4-bit weights, 16-bit activations, or no activations."
        )


def _kernel(
    key: Key, scheme: Scheme, zero_point: tuple[int, ...], lowering: Lowering, recipe: Recipe
) -> None:
    """Raise where an integer operator does not take a weight of this scheme."""
    single = isinstance(scheme.granularity, PerTensor)
    if not single and not lowering.per_channel:
        raise RecipeError(
            f"{key}: {lowering.op_type} takes one scale for a weight; choose granularity tensor."
        )
    alike = len(set(zero_point)) == 1 if zero_point else lowering.takes_per_channel(scheme)
    if not single and lowering.one_zero_point and not alike:
        raise RecipeError(
            f"{key}: {lowering.op_type} takes one zero point for all channels; choose a signed type and"
            " symmetric, or granularity tensor."
        )
    act, weight = recipe.activations, scheme.qtype
    if recipe.style is Style.QDQ or act is None or not lowering.pairs or lowering.takes(act.qtype, weight):
        return
    raise RecipeError(
        f"{key}: {lowering.op_type} has no kernel for {act.qtype} activations with {weight} weights; choose"
        " another type, or style qdq."
    )
