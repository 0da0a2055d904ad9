"""What a call wants: a recipe and a target, with the changes that keywords or flags make to them.

Python's verbs and the command line fill the same :class:`RecipeRequest`, so that both mean the same. A
target that is given wins over the recipe's, a change over the recipe's own setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from octavo.algorithms.steps.registry import FOR_BLOCKS
from octavo.algorithms.weights.registry import AWQ_IF_SAMPLED, WITH_DATA
from octavo.core.arguments import unknown_keyword
from octavo.core.granularity import Granularity, PerBlock, parse
from octavo.core.qtypes import INT8, QType, TypeName, qtype
from octavo.core.recipe import (
    COMPRESSED,
    HALF,
    W4,
    DynamicScheme,
    FloatType,
    HalfPrecision,
    LayerWeights,
    Pattern,
    Recipe,
    RecipeSource,
    Style,
    WeightOnly,
    recipe_of,
)
from octavo.core.recipe_parts import NO_STEPS
from octavo.core.scheme import Method, Scheme
from octavo.emission import OutputFormat, output_format
from octavo.errors import RecipeError
from octavo.targets import Target
from octavo.targets import target as find_target

DEFAULT_TARGET = "ort-cpu"


class Changes(TypedDict, total=False):
    """The keywords that change a recipe.

    ============  ======================================================================================
    weights       the type of weights, such as ``int8`` or ``int4``
    activations   the type of activations, ``dynamic`` (ranges found at run time) or ``none``
    per           scales of weights: ``tensor``, ``channel`` or ``block:SIZE``
    method        how ranges are read: ``minmax``, ``percentile:99.99``, ``entropy``, ``mse``, …; the default
                  step ``clip``, which chooses ranges itself, is left out then
    steps         what wins accuracy back, by the names of ``octavo steps``
    style         the output format: ``qdq``, ``qoperator`` or ``integer``
    compressed    int8 storage of weights that run as float: ``rest`` or ``all``
    float_type    16-bit floats for what is not quantized: ``fp16``, ``bf16`` or ``auto``, ``:compute`` or
                  ``:storage`` may follow; where nothing else changes the recipe, nothing is quantized
    io            ``half``: inputs and outputs of the model in that type too
    symmetric     whether zero lies in the middle of the integers of weights
    algorithm     how weights in blocks are quantized: ``rtn``, ``furthest``, ``hqq``, ``k-quant``,
                  ``importance``, ``gptq``; by default ``importance`` with data and ``k-quant`` without
    accuracy_level  of MatMulNBits: 4 computes with activations in 8 bits, 0 as the runtime likes
    head          bits or type of the product that makes the logits, or ``same``
    embeddings    bits or type of the tables that are looked up, or ``float``
    layers        bits or types by patterns of nodes: ``{"*down_proj*": 8, "/lm_head/*": "float"}``
    include       patterns of nodes: quantize these and no others
    exclude       patterns of nodes that stay in float
    bits          bits of weights in blocks on average: layers get 2, 4 or 8 by their measured sensitivity
    size          the same, but all weights together take this part of float's bytes; tables get 8 bits
    op_types      quantize these op types and no others
    ============  ======================================================================================
    """

    weights: TypeName | Scheme | None
    activations: TypeName | Scheme | DynamicScheme | None
    per: str | Granularity | None
    method: str | Method | None
    steps: Iterable[str] | str | None
    style: Style | str | None
    compressed: str | None
    float_type: str | None
    io: str | None
    symmetric: bool | None
    algorithm: str | None
    accuracy_level: int | None
    head: str | int | None
    embeddings: str | int | None
    layers: Mapping[str, str | int] | None
    bits: float | None
    size: float | None
    include: Iterable[Pattern] | Pattern
    exclude: Iterable[Pattern] | Pattern
    op_types: Iterable[str] | str | None


_WEIGHT_ONLY = ("algorithm", "accuracy_level", "head", "embeddings", "layers", "bits", "size")
_OF_THE_RECIPE = (
    "weights",
    "activations",
    "per",
    "symmetric",
    "method",
    "steps",
    "style",
    "compressed",
    "float_type",
    "io",
    *_WEIGHT_ONLY,
)


@dataclass(frozen=True)
class RecipeRequest:
    """A recipe, a target and changes, as a call gave them."""

    recipe: Recipe | None
    target: Target | None
    changes: Changes

    @classmethod
    def of(cls, recipe: RecipeSource | None, target: str | Target | None, changes: Changes) -> RecipeRequest:
        """Look up what is given by name."""
        known = Changes.__annotations__
        for name in changes:
            if name not in known:
                raise unknown_keyword(name, known)
        found = find_target(target) if target is not None else None
        return cls(recipe_of(recipe) if recipe is not None else None, found, changes)

    @property
    def fixes_recipe(self) -> bool:
        """Whether the call says how to quantize, and not only what: then nothing else is tried."""
        return self.recipe is not None or any(self.changes.get(name) is not None for name in _OF_THE_RECIPE)

    def resolve(self, *, static: bool) -> tuple[Recipe, Target]:
        """Return the recipe to carry out and the target to carry it out for.

        Without a recipe it is the target's: the one with calibration where there is data (``static``).
        """
        recipe, target = self.recipe, self.target
        if target is None:
            target = find_target(recipe.target if recipe is not None else DEFAULT_TARGET)
        if self.changes.get("compressed") == "all":
            return self._only_compressed(target), target
        half = half_precision(self.changes.get("float_type"), self.changes.get("io"), target)
        if recipe is None and half is not None and not self._quantizes:
            return HALF.but(
                target=target.name, half=half, exclude=patterns(self.changes.get("exclude"))
            ), target
        if recipe is None and self._is_about_blocks:
            return self._weight_only_recipe(target, half, static=static), target
        if recipe is None:
            recipe = target.static_recipe if static else target.dynamic_recipe
        elif recipe.target != target.name:
            recipe = recipe.but(target=target.name)
        changed = self._settled(self._changed(recipe), static=static)
        return (changed.but(half=half) if half is not None else changed), target

    def _weight_only_recipe(self, target: Target, half: HalfPrecision | None, *, static: bool) -> Recipe:
        """Return the recipe of a call about weights in blocks.

        ``int4`` is a width there: zero points are stored where the target takes them, since they cut
        the error of small blocks by a quarter, unless the call says ``symmetric``.
        """
        changed = self._changed(W4.but(target=target.name))
        weights, symmetric = changed.weights, self.changes.get("symmetric")
        unsigned = f"uint{weights.qtype.bits}"
        if symmetric is None:
            symmetric = target.accepts.symmetric_weights or unsigned not in target.accepts.weight_types
        kind = qtype(f"int{weights.qtype.bits}" if symmetric else unsigned)
        weights = weights.but(qtype=kind, symmetric=symmetric)
        options = self._weight_only(W4.weight_only, weights)
        return self._settled(changed.but(weights=weights, weight_only=options, half=half), static=static)

    def _settled(self, recipe: Recipe, *, static: bool) -> Recipe:
        """Resolve the weight algorithm ``auto`` with data, and let AWQ come before it where bits are few.

        Without data the model shows whether its inputs can be sampled.
        """
        if not recipe.is_weight_only or recipe.weight_only.algorithm != "auto":
            return recipe
        is_open = recipe.steps or self.changes.get("steps") is None
        others = [text for text in recipe.steps if not text.startswith("cache")]
        if is_open and not others and recipe.weights.qtype.bits < 8:
            recipe = recipe.but(steps=("awq" if static else AWQ_IF_SAMPLED, *recipe.steps))
        return recipe.but(weight_only=replace(recipe.weight_only, algorithm=WITH_DATA)) if static else recipe

    @property
    def _is_about_blocks(self) -> bool:
        """Whether the call wants weights in blocks or of few bits, and says nothing of activations."""
        given = self.changes
        if given.get("activations") not in (None, "none") or given.get("method"):
            return False
        if any(text.partition(":")[0] not in FOR_BLOCKS for text in names("steps", given.get("steps") or ())):
            return False
        per = given.get("per")
        grain = parse(per) if isinstance(per, str) else per
        if grain is not None and not isinstance(grain, PerBlock):
            return False
        name = given.get("weights")
        few = name is not None and (name.qtype if isinstance(name, Scheme) else qtype(name)).bits < 8
        return few or grain is not None or any(given.get(one) is not None for one in _WEIGHT_ONLY)

    @property
    def _quantizes(self) -> bool:
        """Whether changes say how to quantize beside the type of floats."""
        said = [name for name in _OF_THE_RECIPE if name not in ("float_type", "io")]
        return any(self.changes.get(name) is not None for name in (*said, "op_types"))

    def _only_compressed(self, target: Target) -> Recipe:
        others = [name for name in (*_OF_THE_RECIPE, "include", "op_types") if name != "compressed"]
        clash = [name for name in others if self.changes.get(name)]
        if self.recipe is not None:
            clash.insert(0, "recipe")
        if clash:
            raise RecipeError(
                f"compressed: all quantizes nothing, so {', '.join(clash)} can't be combined with it; leave"
                " one of them out, or compress the rest."
            )
        return COMPRESSED.but(target=target.name, exclude=patterns(self.changes.get("exclude")))

    def _changed(self, recipe: Recipe) -> Recipe:
        given = self.changes
        changes: dict[str, Any] = {
            "include": (*recipe.include, *patterns(given.get("include"))),
            "exclude": (*recipe.exclude, *patterns(given.get("exclude"))),
        }
        types = {name: given[name] for name in ("weights", "activations") if given.get(name) is not None}
        is_weight_only, recipe = recipe.is_weight_only, recipe.but(**types)
        weights, activations = recipe.weights, recipe.activations
        if (per := given.get("per")) is not None:
            weights = weights.but(granularity=per)
        if (symmetric := given.get("symmetric")) is not None:
            weights = weights.but(symmetric=symmetric)
        changes["weights"] = weights
        if (method := given.get("method")) is not None:
            activations = changes["activations"] = _with_method(activations, method)
        changes["steps"] = self._steps(recipe, activations)
        if given.get("op_types") is not None:
            changes["op_types"] = names("op_types", given["op_types"])
        if any(given.get(name) is not None for name in _WEIGHT_ONLY) or is_weight_only:
            changes["weight_only"] = self._weight_only(recipe.weight_only, weights)
        if (style := given.get("style")) is not None:
            chosen = output_format(style.value if isinstance(style, Style) else str(style))
            changes["style"] = chosen.style
            changes["writing"] = replace(recipe.writing, format=_own_name(chosen))
        if (rest := given.get("compressed")) is not None:
            if rest != "rest":
                raise RecipeError(f"compressed: {rest!r} is neither 'rest' nor 'all'.")
            changes["compressed"] = INT8
        changed = recipe.but(**changes)
        unread = [name for name in _WEIGHT_ONLY if given.get(name) is not None]
        if unread and not changed.is_weight_only:
            raise RecipeError(
                f"{', '.join(unread)}: these are settings of weights in blocks beside float"
                " activations; leave activations out and write per block:SIZE, or leave these out."
            )
        return changed

    def _weight_only(self, base: WeightOnly, weights: Scheme) -> WeightOnly:
        """Return the options of weights in blocks with the changes of the call."""
        given, signed = self.changes, weights.symmetric

        def kind(text: str | int | None, before: QType | None, keep: str) -> QType | None:
            if text is None:  # as signed as the other weights, unless a recipe has said it
                return _of_bits(before.bits, signed) if before is not None else None
            return None if str(text) == keep else _of_bits(text, signed)

        layers = [_layer(pattern, text, signed) for pattern, text in (given.get("layers") or {}).items()]
        level, bits = given.get("accuracy_level"), given.get("bits")
        tables = given.get("embeddings")
        if tables is None and base.embeddings is None and given.get("size") is not None:
            tables = 8  # what they lose does not show, and layers need the bytes
        return WeightOnly(
            algorithm=given.get("algorithm") or base.algorithm,
            accuracy_level=base.accuracy_level if level is None else level,
            head=kind(given.get("head"), base.head, "same"),
            embeddings=kind(tables, base.embeddings, "float"),
            table_axis=base.table_axis,
            whole_columns=base.whole_columns,
            layers=(*base.layers, *layers),
            average_bits=base.average_bits if bits is None else float(bits),
            size=base.size if (size := given.get("size")) is None else float(size),
        )

    def _steps(self, recipe: Recipe, activations: Any) -> tuple[str, ...]:
        """Return the steps of the call, or those of the recipe that still make sense with its changes."""
        given = self.changes.get("steps")
        if given is not None:
            return names("steps", given)
        if self.recipe is not None:
            return recipe.steps
        if not isinstance(activations, Scheme):
            return ()  # the default steps are about calibrated activations
        has_method = self.changes.get("method") is not None  # clip would choose the ranges by another one
        return tuple(text for text in recipe.steps if not (has_method and text.startswith("clip")))


_SHORT_NAMES = {FloatType.FLOAT16: "fp16", FloatType.BFLOAT16: "bf16"}
IO_TYPES = ("keep", "half", *_SHORT_NAMES.values())  # of a model's inputs and outputs; half: as computed in


def half_precision(text: str | None, io: str | None, target: Target) -> HalfPrecision | None:
    """16-bit floats from ``fp16``, ``bf16:storage`` or ``auto``; None where floats stay as they are."""
    if io not in (None, *IO_TYPES):
        raise RecipeError(f"io: {io!r} is not known; write one of {', '.join(IO_TYPES)}.")
    changes_io = io not in (None, "keep")
    if text is None:
        if changes_io:
            raise RecipeError(f"io={io!r} needs a float type; add float_type='fp16' (--float fp16).")
        return None
    found = HalfPrecision.parse(text)
    kind = found.type_for(target.kernels.half_types)
    if changes_io and io not in ("half", _SHORT_NAMES[kind]):
        raise RecipeError(
            f"io={io!r} and float type {text!r} are not the same; write io='half' or leave it out."
        )
    return replace(found, float_type=kind, io=changes_io)


def _of_bits(text: str | int, signed: bool) -> QType:
    """Return the type that a number of bits means, or a type by its name."""
    from octavo.planning.policies.weight_only import BITS

    plain = str(text)
    if plain.isdigit() and int(plain) not in BITS:
        raise RecipeError(f"Weights in blocks have 2, 4 or 8 bits, not {plain}.")
    return qtype(f"{'int' if signed else 'uint'}{plain}") if plain.isdigit() else qtype(plain)


def _layer(pattern: str, text: str | int, signed: bool) -> LayerWeights:
    """Read the settings of some layers: bits or a type, with a block behind a slash, or ``float``."""
    kind, _, size = str(text).partition("/")
    if kind == "float":
        return LayerWeights(pattern, keep_float=True)
    if size and not size.isdigit():
        raise RecipeError(f"layers: {text!r} is not bits or a type, with a block size behind a slash: 8/64.")
    return LayerWeights(pattern, _of_bits(kind, signed), int(size) if size else None)


def style_of(style: Style | str) -> Style:
    """Return the style of this name."""
    return style if isinstance(style, Style) else output_format(str(style)).style


def _own_name(chosen: OutputFormat) -> str:
    """Return the name of a format that is not simply a style."""
    return "" if chosen.name == chosen.style.value else chosen.name


def patterns(given: Iterable[Pattern] | Pattern | None) -> tuple[Pattern, ...]:
    """Return patterns of nodes as a tuple; a single one needs no brackets."""
    if given is None:
        return ()
    return (given,) if isinstance(given, str) or callable(given) else tuple(given)


def names(what: str, given: Iterable[str] | str | None) -> tuple[str, ...]:
    """Return names as a tuple, from a list of them or from text with commas."""
    if what == "steps" and given == NO_STEPS:
        return ()
    listed = given.split(",") if isinstance(given, str) else list(given or ())
    found = tuple(str(name).strip() for name in listed if str(name).strip())
    if not found and listed != [] and what == "op_types":
        raise RecipeError("op_types names no op type; write for example Conv,MatMul.")
    return found


def _with_method(activations: Any, method: str | Method) -> Scheme:
    if not isinstance(activations, Scheme):
        raise RecipeError(
            "A method says how ranges are read from calibration data, and nothing here is calibrated; give"
            " data, or leave the method out."
        )
    return activations.but(method=method)
