"""What the runtime can't run, or runs wrong, though a recipe or an override can ask for it.

It checks none of this itself: a wrong channel axis gives wrong numbers where the weight is square, blocks
of 8-bit weights beside 8-bit activations fail when the model runs. So these are errors before anything is
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Bounded, Constant, Entry, Fixed, Key, Measured, Quantized
from octavo.core.qtypes import QType
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.ops import BLOCK_PRODUCT, Act, Form, Kind, OpRule, Weight, axis_of, rule_of
from octavo.planning.accepted import is_centred, nearest
from octavo.targets import Target


def check(
    entries: Mapping[Key, Entry],
    nodes: Iterable[ir.Node],
    quantized: Mapping[str, Quantized],
    recipe: Recipe,
    target: Target,
) -> None:
    """Raise for the first entry that can't be emitted, saying which and what to choose instead."""
    readers = {node.name: node for node in nodes}
    blocks = {name for name, node in quantized.items() if node.form == BLOCK_PRODUCT.op_type}
    for key, entry in entries.items():
        if key.reader in blocks:
            continue
        node = readers.get(key.reader) if key.reader is not None else None
        match entry:
            case Measured(scheme) | Bounded(scheme):
                _activation(key, scheme, (), recipe, target)
            case Constant(scheme):
                _constant(key, scheme, (), node, recipe, target)
            case Fixed(scheme, _, zero_point):
                _constant(key, scheme, zero_point, node, recipe, target)
            case _:
                pass


def _activation(
    key: Key, scheme: Scheme, zero_point: tuple[int, ...], recipe: Recipe, target: Target
) -> None:
    if not isinstance(scheme.granularity, PerTensor):
        raise RecipeError(
            f"{key}: an activation per {scheme.granularity} has no kernel; choose granularity tensor."
        )
    _type(key, scheme.qtype, target.activation_types, "activation", target)
    if target.symmetric_activations:
        _centred(key, scheme, zero_point, target)
    if (
        recipe.style is not Style.QDQ
        and recipe.activations is not None
        and scheme.qtype != recipe.activations.qtype
    ):
        raise RecipeError(
            f"{key}: the {recipe.style.value} style has one type for all activations,"
            f" {recipe.activations.qtype}; choose style qdq for {scheme.qtype} here."
        )


def _type(key: Key, qtype: QType, legal: tuple[str, ...], what: str, target: Target) -> None:
    if qtype.name not in legal:
        raise RecipeError(
            f"{key}: target {target.name} takes no {qtype} {what}; choose {nearest(qtype, legal)}, or one of:"
            f" {', '.join(legal)}."
        )


def _centred(key: Key, scheme: Scheme, zero_point: tuple[int, ...], target: Target) -> None:
    if any(zero_point) or (not zero_point and not is_centred(scheme)):
        raise RecipeError(f"{key}: target {target.name} takes zero point 0 alone; choose symmetric.")


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
    _type(key, scheme.qtype, target.weight_types, "weight", target)
    if target.symmetric_weights:
        _centred(key, scheme, zero_point, target)
    form = rule.forms.get(recipe.style)
    if isinstance(role, Weight) and rule.kind is not Kind.RECURRENT:
        channels(key, scheme, role, node)
        blocks(key, scheme, recipe)
    if form is not None:
        _fits(key, scheme, zero_point, form, recipe)


def _role(rule: OpRule | None, node: ir.Node | None, tensor: str) -> object:
    if rule is None or node is None:
        return None
    index = next((i for i, v in enumerate(node.inputs) if v is not None and v.name == tensor), None)
    return rule.role(index) if index is not None else None


def channels(key: Key, scheme: Scheme, role: Weight, node: ir.Node) -> None:
    """Raise where scales lie along another axis than the operator's channels."""
    axis = axis_of(role.axis, node)
    if isinstance(scheme.granularity, PerChannel) and scheme.granularity.axis != axis:
        right = "tensor" if axis is None else f"channel:{axis}"
        where = "no axis" if axis is None else f"axis {axis}"
        raise RecipeError(
            f"{key}: {node.op_type} has its channels on {where}, and scales"
            f" per {scheme.granularity} would give wrong results; choose granularity {right}."
        )


def blocks(key: Key, scheme: Scheme, recipe: Recipe) -> None:
    """Raise where weights in blocks have no kernel beside these activations."""
    if not isinstance(scheme.granularity, PerBlock):
        return
    activations = recipe.activations
    if recipe.style is not Style.QDQ:
        raise RecipeError(
            f"{key}: blocks exist in the qdq style only; choose style qdq, or granularity channel."
        )
    eight = scheme.qtype.bits == 8 and not scheme.qtype.is_float
    if eight and activations is not None and activations.qtype.bits == 8 and not activations.qtype.is_float:
        raise RecipeError(
            f"{key}: {scheme.qtype} weights in blocks beside {activations.qtype} activations fail in the"
            " runtime; choose granularity channel, 4-bit weights, 16-bit activations, or no activations."
        )


def _fits(key: Key, scheme: Scheme, zero_point: tuple[int, ...], form: Form, recipe: Recipe) -> None:
    """Whether an integer operator takes a weight of this scheme."""
    single = isinstance(scheme.granularity, PerTensor)
    if not single and not form.per_channel:
        raise RecipeError(f"{key}: {form.op_type} takes one scale for a weight; choose granularity tensor.")
    alike = len(set(zero_point)) == 1 if zero_point else form.takes_per_channel(scheme)
    if not single and form.one_zero_point and not alike:
        raise RecipeError(
            f"{key}: {form.op_type} takes one zero point for all channels; choose a signed type and"
            " symmetric, or granularity tensor."
        )
    act, weight = recipe.activations, scheme.qtype
    if recipe.style is not Style.QDQ and act is not None and form.pairs and not form.takes(act.qtype, weight):
        raise RecipeError(
            f"{key}: {form.op_type} has no kernel for {act.qtype} activations with {weight} weights; choose"
            " another type, or style qdq."
        )
