"""A recipe says what the user wants: types, style, which nodes; it names no tensor's numbers.

Recipes are frozen values. Change one with ``but``, write it as YAML or JSON, read it back::

    W8A8.but(activations=W8A8.activations.but(method=Percentile(99.99)), exclude=("op:Softmax", "/head/*"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

import yaml

from octavo.core import codec
from octavo.core.arguments import check_arguments, check_type
from octavo.core.files import RepeatedNameError, read_bytes, unique, unreadable, write_text
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.override import Override
from octavo.core.qtypes import FLOAT8E4M3FN, INT8, UINT4, UINT8, UINT16, QType, is_type
from octavo.core.recipe_parts import (
    NO_STEPS,
    FloatType,
    HalfPrecision,
    LayerWeights,
    Listing,
    Pattern,
    Placement,
    Style,
    WeightOnly,
    WriteOptions,
    set_tuple,
)
from octavo.core.scheme import (
    Distribution,
    DynamicScheme,
    Scheme,
    activation_scheme,
    refuse_unknown_fields,
    weight_scheme,
)
from octavo.core.shown import Brief
from octavo.errors import RecipeError, closest


@dataclass(frozen=True, repr=False)
class Recipe(Brief):
    """What is requested: types, methods, steps, output format, and which nodes.

    ``include`` and ``exclude`` take node names, globs, ``re:…``, ``op:…`` and ``between:a,b``.
    """

    weights: Scheme
    activations: Scheme | DynamicScheme | None
    style: Style = Style.QDQ
    target: str = "ort-cpu"
    placement: Placement = Placement.TARGET
    op_types: tuple[str, ...] | None = None
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    overrides: tuple[Override, ...] = ()
    quantize_bias: bool = True
    fuse_clamps: bool = True
    quantize_embeddings: bool = True
    calibration_samples: int | None = None
    listing: Listing = field(default_factory=Listing)
    writing: WriteOptions = field(default_factory=WriteOptions)
    steps: tuple[str, ...] = ()  # of ``octavo steps``, with options behind colons
    dynamic_nodes: tuple[str, ...] = ()  # linear layers of a static model whose inputs have no fixed range
    weight_only: WeightOnly = field(default_factory=WeightOnly)
    compressed: QType | None = None  # of the weights of layers that stay float: int8, restored at load
    half: HalfPrecision | None = None  # what is not quantized, in 16 bits instead of 32

    def __post_init__(self) -> None:
        for name in ("exclude", "overrides", "steps", "dynamic_nodes"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, ())
        for name in ("op_types", "include", "exclude", "overrides", "steps", "dynamic_nodes"):
            set_tuple(self, name)
        if self.steps == (NO_STEPS,):
            object.__setattr__(self, "steps", ())
        self._read_names()
        if self.calibration_samples is not None and self.calibration_samples < 1:
            raise RecipeError(
                f"{self.calibration_samples} calibration samples measure nothing; use one or more, or "
                "leave calibration_samples out to use all."
            )
        if self.compressed not in (None, INT8):
            raise RecipeError(
                f"compressed: weights of float layers are stored as int8, not as {self.compressed}; write"
                " int8 or null."
            )

    def _read_names(self) -> None:
        """Take what is given by name or as plain data: a type of weights, a style, a list of overrides."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__dataclass_fields__}
        read = {
            name: codec.decode(kind, given[name], name)
            for name, kind in _PLAIN_FIELDS.items()
            if isinstance(given[name], str | dict)
        }
        for name, scheme_of in (("weights", weight_scheme), ("activations", activation_scheme)):
            if is_type(given[name]):
                read[name] = scheme_of(None, given[name])
        for name, kinds in (("weights", Scheme), ("activations", (Scheme, DynamicScheme, NoneType))):
            check_type(
                name, read.get(name, given[name]), kinds, "the name of a type, such as 'int8', or a Scheme"
            )
        if given["overrides"]:
            read["overrides"] = tuple(
                codec.decode(Override, one, "overrides") if isinstance(one, dict) else one
                for one in given["overrides"]
            )
        read["target"] = getattr(given["target"], "name", given["target"])  # of a datasheet
        for name, value in read.items():
            object.__setattr__(self, name, value)

    def but(self, **changes: Any) -> Recipe:
        """Return a copy with some fields changed.

        Types of weights and activations may be given by name: ``W8A8.but(activations="int8")`` changes the
        type and leaves the rest of the scheme as it is.
        """
        changes = dict(codec.current_names("Recipe", changes))
        check_arguments(**changes)
        refuse_unknown_fields("A recipe", self.__dataclass_fields__, changes)
        if is_type(changes.get("weights")):
            changes["weights"] = weight_scheme(self.weights, changes["weights"])
        if is_type(given := changes.get("activations")):
            if (
                isinstance(given, str)
                and given == "dynamic"
                and not isinstance(self.activations, DynamicScheme)
            ):
                changes.setdefault("style", Style.INTEGER)
            changes["activations"] = activation_scheme(self.activations, given)
        return replace(self, **changes)

    @property
    def is_static(self) -> bool:
        """Whether activations have parameters that calibration has to find."""
        return isinstance(self.activations, Scheme)

    @property
    def is_weight_only(self) -> bool:
        """Whether weights are in blocks and activations stay float."""
        return self.activations is None and isinstance(self.weights.granularity, PerBlock)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; a callable among the patterns can't be written and is an error."""
        plain: dict[str, Any] = codec.encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: Any) -> Recipe:
        """Return a recipe from plain data: ``base`` names a preset that the other keys change."""
        if isinstance(data, dict) and "base" in data:
            rest = {k: v for k, v in data.items() if k != "base"}
            base = data["base"]
            if not isinstance(base, str):
                raise RecipeError(f"base: expected the name of a preset; known are {', '.join(PRESETS)}.")
            return preset(base)._changed_by(rest)
        if isinstance(data, dict) and data.keys() <= _OF_FLOATS and data.keys() & {"half", "compressed"}:
            return (HALF if "half" in data else COMPRESSED)._changed_by(data)
        if isinstance(data, dict) and data and data.keys() <= cls.__dataclass_fields__.keys() - {"weights"}:
            raise RecipeError(
                "weights: missing. Name a preset that the other settings change, such as base: W8A8, or the"
                " type of the weights, such as weights: int8."
            )
        recipe: Recipe = codec.decode(cls, _with_schemes(data, None))
        return recipe

    def _changed_by(self, changes: dict[str, Any]) -> Recipe:
        merged = self.to_dict()
        for key, value in _with_schemes(codec.current_names("Recipe", changes), self).items():
            old = merged.get(key)
            merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        recipe: Recipe = codec.decode(Recipe, merged)
        return recipe

    @classmethod
    def load(cls, path: str | Path) -> Recipe:
        """Read a recipe from a YAML or JSON file."""
        path = Path(path)
        try:
            most = _MOST_JSON if path.suffix == ".json" else _MOST_YAML
            text = read_bytes(path, most).decode()
        except OSError as error:
            raise RecipeError(unreadable("Recipe", path, error)) from error
        except ValueError as error:
            raise RecipeError(f"Recipe {path} is not text; give a YAML or JSON file.") from error
        try:
            if path.suffix == ".json":
                data = json.loads(text, object_pairs_hook=unique)
            else:
                data = _Loader(text).get_single_data()
        except RepeatedNameError as error:
            raise RecipeError(f"Recipe {path}: {error}; remove one of the two.") from error
        except Exception as error:  # PyYAML lets through whatever int() or a dict raises
            raise RecipeError(f"Recipe {path} is neither YAML nor JSON: {_reason(error)}.") from error
        try:
            return cls.from_dict(data)
        except RecipeError as error:
            raise RecipeError(f"Recipe {path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the recipe as YAML, or as JSON where the file name says so."""
        check_arguments(path=path)
        path = Path(path)
        plain = self.to_dict()
        if path.suffix == ".json":
            text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        else:
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        write_text(path, text)


class _Loader(yaml.SafeLoader):
    """Plain data; mappings that are merged (``<<``) can't double from line to line beyond all memory.

    A setting that is given twice is an error: which of the two counts would be a guess.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return the settings of a mapping, each of which is there once."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                if key.value in seen:
                    raise RepeatedNameError(
                        f"{key.value!r} is given twice, again in line {key.start_mark.line + 1}"
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put merged settings beside those of the mapping, within bounds."""
        merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
        count = sum(len(one.value) if isinstance(one, yaml.SequenceNode) else 1 for one in merged)
        if count <= _MOST_MERGED:
            super().flatten_mapping(node)
        if count > _MOST_MERGED or (count and len(node.value) > _MOST_SETTINGS):
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {_MOST_MERGED} mappings or {_MOST_SETTINGS} settings are merged",
                node.start_mark,
            )  # fmt: skip


_PLAIN_FIELDS: dict[str, Any] = {
    "style": Style,
    "placement": Placement,
    "compressed": QType,
    "listing": Listing,
    "writing": WriteOptions,
}


def _with_schemes(data: Any, base: Recipe | None) -> Any:
    """Return plain data of a recipe with values in the place of short forms such as ``weights: int8``."""
    if not isinstance(data, Mapping):
        return data
    found, known = dict(data), (None, None) if base is None else (base.weights, base.activations)
    try:
        name = "weights"
        if isinstance(found.get(name), str):
            found[name] = codec.encode(weight_scheme(known[0], found[name]))
        name = "activations"
        if isinstance(found.get(name), str) and found[name] != "dynamic":
            found[name] = codec.encode(activation_scheme(known[1], found[name]))
        name = "half"
        if isinstance(found.get(name), str):
            found[name] = codec.encode(HalfPrecision.parse(found[name]))
    except RecipeError as error:
        raise RecipeError(f"{name}: {error}") from error
    return found


_MOST_JSON, _MOST_YAML = 16 << 20, 1 << 20  # bytes; YAML takes seconds for each
_MOST_MERGED, _MOST_SETTINGS = 16, 1000  # mappings in one, and settings in what they are merged into


def _reason(error: Exception) -> str:
    """Return why a file could not be parsed, in one line, with the place where PyYAML knows it."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        return f"{getattr(error, 'problem', None) or 'syntax error'} in line {mark.line + 1}"
    return (str(error).splitlines() or [type(error).__name__])[0]


_CHANNEL_INT8 = Scheme(INT8, PerChannel(), symmetric=True)

W8A8 = Recipe(weights=_CHANNEL_INT8, activations=Scheme(UINT8))
W8A16 = Recipe(weights=_CHANNEL_INT8, activations=Scheme(UINT16))
W8 = Recipe(weights=_CHANNEL_INT8, activations=DynamicScheme(), style=Style.INTEGER)
W4 = Recipe(
    weights=Scheme(UINT4, PerBlock(32)),
    activations=None,
    style=Style.QOPERATOR,
    weight_only=WeightOnly(head=UINT8),
)
W4A16 = W4  # activations stay in the float type of the model
FP8 = Recipe(
    weights=Scheme(FLOAT8E4M3FN, PerTensor(), symmetric=True),
    activations=Scheme(FLOAT8E4M3FN, symmetric=True, method=Distribution()),
    placement=Placement.EVERYWHERE,
)
# No operator is quantized; weights are int8 in the file alone.
COMPRESSED = Recipe(weights=_CHANNEL_INT8, activations=None, op_types=(), compressed=INT8)
HALF = Recipe(weights=_CHANNEL_INT8, activations=None, op_types=(), half=HalfPrecision(FloatType.FLOAT16))
# A recipe of these alone, with one of the first two, quantizes nothing.
_OF_FLOATS = frozenset({"half", "compressed", "target", "exclude"})

PRESETS: dict[str, Recipe] = {
    "W8A8": W8A8,
    "W8A16": W8A16,
    "W8": W8,
    "W4": W4,
    "W4A16": W4A16,
    "FP8": FP8,
}


def preset(name: str) -> Recipe:
    """Return the preset of this name: W8A8, W8A16 and FP8 are static, W8 is dynamic, W4 is weight-only."""
    if name not in PRESETS:
        raise RecipeError(
            f"{name!r} is not a preset{closest(name, PRESETS) or '.'} Known: {', '.join(PRESETS)}."
        )
    return PRESETS[name]


RecipeSource = Recipe | str | Path | Mapping[str, Any]


def recipe_of(given: RecipeSource) -> Recipe:
    """Return a recipe from a value, plain data, the name of a preset in any case, or a file."""
    if isinstance(given, Recipe):
        return given
    if isinstance(given, Mapping):
        return Recipe.from_dict(dict(given))
    if not isinstance(given, str | Path):
        raise RecipeError(
            f"A recipe is a Recipe, a dict, a preset's name or a file, not of type {type(given).__name__}."
        )
    presets = {name.lower(): recipe for name, recipe in PRESETS.items()}
    found = presets.get(str(given).lower())
    if found is not None:
        return found
    if not Path(given).suffix and not _exists(Path(given)):
        raise RecipeError(
            f"recipe {str(given)!r} is neither a preset nor a file that exists"
            f"{closest(str(given), PRESETS) or '.'} Presets: {', '.join(PRESETS)}."
        )
    return Recipe.load(given)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


__all__ = [
    "COMPRESSED",
    "FP8",
    "HALF",
    "PRESETS",
    "W4",
    "W4A16",
    "W8",
    "W8A8",
    "W8A16",
    "DynamicScheme",
    "FloatType",
    "HalfPrecision",
    "LayerWeights",
    "Listing",
    "Override",
    "Pattern",
    "Placement",
    "Recipe",
    "RecipeSource",
    "Style",
    "WeightOnly",
    "WriteOptions",
    "preset",
    "recipe_of",
]
