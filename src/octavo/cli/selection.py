"""The flags that say what to quantize and how, shared by ``quantize`` and ``plan``; the recipe they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.core.recipe import Recipe
    from octavo.core.scheme import Scheme

DEFAULT_TARGET = "ort-cpu"
PRESET_NAMES = ("W8A8", "W8A16", "W8", "W4A16", "FP8")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    what = parser.add_argument_group("what to quantize")
    what.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="keep these nodes float: a name, a glob, re:…, op:TYPE, between:TENSOR,TENSOR; may be repeated",
    )
    what.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        default=[],
        help="quantize these nodes and no others; may be repeated",
    )
    what.add_argument("--op-types", metavar="A,B", help="quantize these op types and no others")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--recipe", metavar="FILE|PRESET", help=f"a YAML or JSON file, or one of {', '.join(PRESET_NAMES)}"
    )
    how.add_argument(
        "--dynamic", action="store_true", help="find activation ranges while the model runs: no data needed"
    )
    how.add_argument(
        "--stored",
        choices=("rest", "all"),
        help="store weights as int8 that run as float: rest, of what is not quantized; all: quantize nothing",
    )
    how.add_argument(
        "--format",
        choices=("qdq", "qoperator", "integer"),
        help="how quantized operators are spelled (default: the recipe's)",
    )
    how.add_argument(
        "--target", metavar="NAME", help="what the model will run on (default: ort-cpu; see octavo targets)"
    )
    how.add_argument(
        "--weights", metavar="TYPE", help="int8, uint8, int4, uint4, int16, uint16 or float8e4m3fn"
    )
    how.add_argument(
        "--activations", metavar="TYPE", help="such a type, or 'dynamic', or 'none' for weights only"
    )
    how.add_argument("--per", metavar="GRANULARITY", help="scales of weights: tensor, channel or block:SIZE")
    how.add_argument(
        "--method",
        metavar="METHOD",
        help="how ranges are read: minmax, percentile:99.99, entropy, mse, distribution or auto",
    )
    how.add_argument(
        "--steps",
        metavar="A,B",
        help="win back accuracy: smoothquant, equalize, clip, rounding, … (see octavo steps)",
    )


def op_types(options: argparse.Namespace) -> tuple[str, ...] | None:
    """``--op-types A,B`` as a tuple."""
    if options.op_types is None:
        return None
    names = tuple(name.strip() for name in options.op_types.split(",") if name.strip())
    if not names:
        raise RecipeError("--op-types names no op type; write for example --op-types Conv,MatMul.")
    return names


def recipe_of(options: argparse.Namespace, *, static: bool) -> Recipe | None:
    """The recipe that the flags ask for, or None where none of them says anything about it."""
    from octavo.targets import target

    if options.stored == "all":
        return _only_stored(options)
    changed = any(
        getattr(options, name) is not None
        for name in ("weights", "activations", "per", "method", "steps", "stored")
    )
    if options.recipe is not None:
        named = _named(options.recipe)
        return _changed(_dynamic(named) if options.dynamic else named, options)
    if not changed and not options.dynamic:
        return None
    sheet = target(options.target or DEFAULT_TARGET)
    static = static and not options.dynamic
    return _changed(sheet.static_recipe if static else sheet.dynamic_recipe, options)


def _only_stored(options: argparse.Namespace) -> Recipe:
    """The recipe that quantizes nothing; a flag that says what or how to quantize is a mistake beside it."""
    from octavo.core.recipe import STORED

    others = ("recipe", "dynamic", "format", "weights", "activations", "per", "method", "steps", "op_types")
    clash = [f"--{name.replace('_', '-')}" for name in (*others, "include") if getattr(options, name)]
    if clash:
        raise RecipeError(
            f"--stored all quantizes nothing, and {', '.join(clash)} would say how; leave one of them out, or"
            " write --stored rest."
        )
    return STORED.but(target=options.target or DEFAULT_TARGET)


def target_of(options: argparse.Namespace, recipe: Recipe | None) -> str:
    """The target that was asked for, or that the recipe names."""
    if options.target is not None:
        return str(options.target)
    return recipe.target if recipe is not None else DEFAULT_TARGET


def _named(name: str) -> Recipe:
    """A preset in any case, or a file."""
    from octavo.core.recipe import PRESETS, Recipe

    for preset, recipe in PRESETS.items():
        if preset.lower() == name.lower():
            return recipe
    if not Path(name).suffix and not Path(name).exists():
        known = ", ".join(PRESETS)
        raise RecipeError(f"--recipe {name!r} is neither a preset ({known}) nor a file that exists.")
    return Recipe.load(name)


def _dynamic(recipe: Recipe) -> Recipe:
    """The recipe with ranges found at run time, which only the integer style can spell."""
    from octavo.core.recipe import DynamicScheme, Style

    if isinstance(recipe.activations, DynamicScheme):
        return recipe
    return recipe.but(activations=DynamicScheme(), style=Style.INTEGER)


def _changed(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    from octavo.core.codec import parse_method
    from octavo.core.granularity import parse
    from octavo.core.qtypes import INT8
    from octavo.core.scheme import Scheme

    if options.activations == "dynamic":
        recipe = _dynamic(recipe)
    changes: dict[str, Any] = {}
    weights = recipe.weights
    if options.weights is not None:
        weights = _typed(weights, options.weights)
    if options.per is not None:
        weights = weights.but(granularity=parse(options.per))
    changes["weights"] = weights
    if options.activations not in (None, "dynamic"):
        changes["activations"] = _activations(recipe, options.activations)
    activations = changes.get("activations", recipe.activations)
    if options.method is not None:
        if not isinstance(activations, Scheme):
            raise RecipeError(
                "--method says how ranges are read from calibration data, and nothing here is calibrated;"
                " give --data, or leave --method out."
            )
        changes["activations"] = activations.but(method=_located("--method", parse_method, options.method))
    if options.steps is not None:
        changes["steps"] = tuple(name.strip() for name in options.steps.split(",") if name.strip())
    if options.stored is not None:
        changes["stored"] = INT8
    return recipe.but(**changes)


def _typed(scheme: Scheme, name: str) -> Scheme:
    from octavo.core.qtypes import qtype

    kind = qtype(name)
    return scheme.but(qtype=kind, symmetric=kind.symmetric_by_default)


def _activations(recipe: Recipe, name: str) -> Any:
    from octavo.core.qtypes import qtype
    from octavo.core.recipe import DynamicScheme
    from octavo.core.scheme import Scheme

    if name == "none":
        return None
    kind = qtype(name)
    match recipe.activations:
        case Scheme() as scheme:
            return scheme.but(qtype=kind, symmetric=scheme.symmetric or kind.is_float)
        case DynamicScheme():
            return DynamicScheme(kind)
        case _:
            return Scheme(kind, symmetric=kind.is_float)


def _located(flag: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise RecipeError(f"{flag} {text!r} can't be read: {error}.") from error
