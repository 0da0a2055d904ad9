"""Recipe × target: what the target leaves open is filled in, and a wish that it can't meet is an error.

Each such error names the nearest choice that is legal.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.qtypes import QType, qtype
from octavo.core.recipe import DynamicScheme, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.targets import Target


def fitted(recipe: Recipe, target: Target) -> Recipe:
    """The recipe with what it leaves open set as the target needs it: float biases, the narrowest range."""
    changes: dict[str, object] = {}
    if recipe.quantize_bias and not target.int32_biases:
        changes["quantize_bias"] = False
    activations = recipe.activations
    if target.least_range is not None and isinstance(activations, Scheme) and activations.min_range is None:
        changes["activations"] = activations.but(min_range=target.least_range)
    return recipe.but(**changes) if changes else recipe


def accepts(recipe: Recipe, target: Target) -> None:
    """Check the recipe against the target's types and styles; a clash is an error that says what is legal."""
    if recipe.style not in target.styles:
        legal = ", ".join(s.value for s in target.styles)
        raise RecipeError(
            f"Target {target.name} takes no {recipe.style.value} models; choose one of: {legal}."
        )
    if isinstance(recipe.activations, DynamicScheme) and not target.dynamic_products:
        raise RecipeError(
            f"Target {target.name} does not quantize activations at run time; give calibration data, or"
            " choose activations none for weights alone."
        )
    wanted = [("weights", recipe.weights, target.weight_types)]
    if isinstance(recipe.activations, Scheme):
        wanted.append(("activations", recipe.activations, target.activation_types))
    for what, scheme, legal_types in wanted:
        if not legal_types:
            raise RecipeError(
                f"Target {target.name} gains nothing by quantized {what}; choose {what} none, or another"
                " target."
            )
        if scheme.qtype.name not in legal_types:
            raise RecipeError(
                f"Target {target.name} takes no {scheme.qtype} {what}; choose"
                f" {nearest(scheme.qtype, legal_types)}, or one of: {', '.join(legal_types)}."
            )
    _granular(recipe, target)
    _symmetric(recipe, target)
    if recipe.style is not Style.QDQ:
        for what, scheme, _ in wanted:
            if scheme.qtype.bits != 8 or scheme.qtype.is_float:
                raise RecipeError(
                    f"{scheme.qtype} {what} exist in the qdq style only; choose style qdq, or an 8-bit"
                    " integer type."
                )
    if recipe.activations is None and recipe.style is not Style.QDQ:
        raise RecipeError(
            f"The {recipe.style.value} style needs quantized activations; choose the style qdq for weights"
            " alone, or give activations a type."
        )
    if isinstance(recipe.activations, DynamicScheme) and recipe.style is not Style.INTEGER:
        raise RecipeError(
            "Activations quantized at run time exist in the integer style only; choose style integer."
        )
    if (
        recipe.weights.qtype.is_float
        and isinstance(recipe.activations, Scheme)
        and not recipe.activations.qtype.is_float
    ):
        raise RecipeError(
            "float8 weights go with float8 activations; choose float8e4m3fn for both, or int8 weights."
        )


def nearest(kind: QType, legal: Sequence[str]) -> str:
    """Of the types that are legal, the one most like another: of its kind, as wide, as signed."""

    def distance(name: str) -> tuple[bool, int, bool]:
        other = qtype(name)
        return other.is_float != kind.is_float, abs(other.bits - kind.bits), other.signed != kind.signed

    return min(legal, key=distance)


def _granular(recipe: Recipe, target: Target) -> None:
    grain = str(recipe.weights.granularity).partition(":")[0]
    if grain not in target.granularities:
        raise RecipeError(
            f"Target {target.name} takes no weights with a scale per {grain}; choose"
            f" {target.granularities[-1]}, or one of: {', '.join(target.granularities)}."
        )


def _symmetric(recipe: Recipe, target: Target) -> None:
    """Zero points have to be zero where the target says so."""
    wanted = [("weights", recipe.weights, target.symmetric_weights)]
    if isinstance(recipe.activations, Scheme):
        wanted.append(("activations", recipe.activations, target.symmetric_activations))
    for what, scheme, must in wanted:
        if must and not is_centred(scheme):
            signed = "" if scheme.qtype.signed else " of a signed type"
            raise RecipeError(
                f"Target {target.name} takes {what} with zero point 0 alone; choose symmetric: true for"
                f" {what}{signed}."
            )


def is_centred(scheme: Scheme) -> bool:
    """Whether a scheme always has the zero point 0."""
    return scheme.qtype.is_float or (scheme.symmetric and scheme.qtype.signed)
