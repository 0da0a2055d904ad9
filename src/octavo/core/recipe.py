"""A recipe says what the user wants: types, style, which nodes; it names no tensor's numbers.

Recipes are frozen values. Change one with ``but``, write it as YAML or JSON, read it back::

    W8A8.but(activations=W8A8.activations.but(method=Percentile(99.99)), exclude=("op:Softmax", "/head/*"))
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import yaml

from octavo.core import codec
from octavo.core.files import read_bytes, replacing
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import FLOAT8E4M3FN, INT8, UINT4, UINT8, UINT16, QType, qtype
from octavo.core.scheme import Distribution, Method, Scheme, refuse_unknown_fields
from octavo.core.shown import Brief
from octavo.errors import RecipeError, closest

Pattern: TypeAlias = str | Callable[[Any], bool]


class FloatType(Enum):
    """A 16-bit float type for what is not quantized."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class HalfPrecision:
    """16-bit floats where nothing is quantized. ``compute`` None follows the target.

    A target whose kernels compute in the type gets a graph in it; for another one weights are stored in it
    and restored at load. ``io`` changes the types of the model's inputs and outputs too.
    """

    float_type: FloatType
    compute: bool | None = None
    io: bool = False


class Style(Enum):
    """How quantized operators are written in the graph."""

    QDQ = "qdq"  # float operators between QuantizeLinear and DequantizeLinear; the runtime fuses
    QOPERATOR = "qoperator"  # QLinearConv, QLinearMatMul, …
    INTEGER = "integer"  # MatMulInteger, ConvInteger, … with float results


@dataclass(frozen=True)
class DynamicScheme:
    """Activations are quantized while the model runs, from each input's own range."""

    TAGGED: ClassVar[bool] = True
    qtype: QType = UINT8

    @classmethod
    def from_text(cls, text: str) -> DynamicScheme:
        """``dynamic`` in a recipe file."""
        if text != "dynamic":
            raise RecipeError(
                f"{text!r} is no activation scheme; write 'dynamic', null, or a mapping of settings."
            )
        return cls()


@dataclass(frozen=True, repr=False)
class Override(Brief):
    """Other settings for the tensors whose name matches: fields left None keep the recipe's.

    A scale or zero point may be a plain number, and any of the sequences a list or an array.
    """

    tensor: str
    keep_float: bool = False
    qtype: QType | None = None
    granularity: Granularity | None = None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    method: Method | None = None
    range: tuple[float, float] | None = None
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    consumers: tuple[str, ...] | None = None  # only for these nodes; absent: for every consumer
    channel_ranges: tuple[tuple[float, float], ...] | None = None  # a range for each channel

    def __post_init__(self) -> None:
        _set_tuple(self, "range", float)
        _set_tuple(self, "scale", float)
        _set_tuple(self, "zero_point", operator.index)
        _set_tuple(self, "consumers", str)
        what = f"Override of {self.tensor!r}"
        if (self.scale is None) != (self.zero_point is None):
            raise RecipeError(f"{what}: scale and zero_point go together; give both or none.")
        if self.scale is not None and any(
            v is not None for v in (self.range, self.channel_ranges, self.symmetric, self.reduce_range)
        ):
            raise RecipeError(
                f"{what}: with scale and zero_point given, range, symmetric and reduce_range have nothing"
                " left to decide; remove them."
            )
        if self.scale is not None and not (self.scale and all(0.0 < s < math.inf for s in self.scale)):
            raise RecipeError(f"{what}: a scale is a positive number; found {list(self.scale)}.")
        if self.scale and self.zero_point and len(self.scale) != len(self.zero_point):
            raise RecipeError(
                f"{what}: {len(self.scale)} scales but {len(self.zero_point)} zero points; give one of each,"
                " or one of each per channel."
            )
        if self.range is not None and not (
            len(self.range) == 2 and -math.inf < self.range[0] <= self.range[1] < math.inf
        ):
            raise RecipeError(
                f"{what}: a range is a smaller and a larger finite number; found {list(self.range)}."
            )


_COMMA_LISTS = ("op_types", "steps", "float_outputs")  # names that have no comma in them


def _set_tuple(owner: Any, name: str, kind: Callable[[Any], Any] | None = None) -> None:
    """Make a field of a frozen value a tuple, of plain numbers: one item needs no brackets."""
    value = getattr(owner, name)
    if value is None:
        return
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if isinstance(value, str) and name in _COMMA_LISTS:
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    try:
        items = tuple(value if kind is None else (kind(item) for item in value))
    except (TypeError, ValueError) as error:
        raise RecipeError(f"{type(owner).__name__}.{name}: {error}.") from error
    object.__setattr__(owner, name, items)


class Placement(Enum):
    """Which of the operators that could be quantized are."""

    TARGET = "target"  # where the target's kernels gain by it
    EVERYWHERE = "everywhere"  # every operator that has a rule
    LISTED = "listed"  # every node of the op types listed, by its own rule, whatever its neighbours gain


@dataclass(frozen=True)
class Listing:
    """What the placement ``listed`` has to know beside the op types."""

    move_anything: bool = False  # data movement is quantized though its input is not
    float_outputs: tuple[str, ...] = ()  # op types whose results stay float
    channel_axes: tuple[tuple[str, int], ...] = ()  # op type and the axis of its weight's channels
    constant_weights_only: bool = False  # a MatMul of two activations stays float
    subgraphs: bool = False  # nodes inside If, Loop and Scan as well
    room_for_biases: bool = True  # a weight's scale is raised where its int32 bias would not fit
    unfused_blocks: bool = False  # 8-bit weights in blocks too, which only unoptimized sessions take
    symmetric_channels: bool = False  # weights with a scale for each channel are symmetric in any case
    tensors: tuple[str, ...] = ()  # quantized though no node asks for it
    shared: tuple[tuple[str, str], ...] = ()  # a tensor, and the one whose parameters it takes
    biases: tuple[
        tuple[str, str, str, str], ...
    ] = ()  # node, its int32 bias, and the two that give the scale

    def __post_init__(self) -> None:
        _set_tuple(self, "float_outputs")
        _set_tuple(self, "tensors")
        axes = tuple((str(op), int(axis)) for op, axis in self.channel_axes)
        object.__setattr__(self, "channel_axes", axes)
        for name in ("shared", "biases"):
            object.__setattr__(self, name, tuple(tuple(map(str, row)) for row in getattr(self, name)))


@dataclass(frozen=True)
class LayerWeights:
    """Other settings for the weights of the nodes that a pattern means: what is None stays the recipe's."""

    nodes: str  # a name, a glob, re:… or op:…
    qtype: QType | None = None
    block: int | None = None
    algorithm: str | None = None
    keep_float: bool = False


@dataclass(frozen=True)
class WeightOnly:
    """How weights in blocks are quantized where activations stay float, beside their scheme.

    The accuracy level of MatMulNBits says what the kernel computes in: 4 (the default) rounds activations to
    8 bits, block by block, which makes decoding about 1.6 times as fast; 0 leaves it to the runtime.
    """

    algorithm: str = "auto"  # name:option=value:…; auto: importance where there is data, else k-quant
    accuracy_level: int = 4
    head: QType | None = None  # of the product that makes an output, such as logits; None: as the others
    embeddings: QType | None = None  # of tables that are looked up; None: they stay float
    table_axis: int = -1  # along which the blocks of a table run
    whole_columns: bool = False  # QDQ: a block is all that one output is computed from
    layers: tuple[LayerWeights, ...] = ()
    average_bits: float | None = None  # layers get 2, 4 or 8 bits by their sensitivity, so many on average

    def __post_init__(self) -> None:
        _set_tuple(self, "layers")
        if self.average_bits is not None and not 2 <= self.average_bits <= 8:
            raise RecipeError(f"Weights have 2 to 8 bits on average, not {self.average_bits:g}.")
        if self.accuracy_level not in range(5):
            raise RecipeError(f"accuracy_level is 0, 1, 2, 3 or 4, not {self.accuracy_level}.")


@dataclass(frozen=True)
class WriteOptions:
    """Choices between graphs that compute the same."""

    format: str = ""  # name of an output format that is planned like the recipe's style; "": the style itself
    domain: str = ""  # of QuantizeLinear and DequantizeLinear
    dedicated: bool = False  # each reader has a pair of these to itself
    float_weights: bool = False  # weights are stored in float and quantized in the model
    columns_transposed: bool = False  # symmetric weights with a block a column: [N, K] and a Transpose
    group_names: bool = False  # parts of weights in blocks are named with their block size
    explicit: bool = False  # zero points that are zero too; scales and zero points in typed fields


@dataclass(frozen=True, repr=False)
class Recipe(Brief):
    """What is wanted.

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
        for name in ("op_types", "include", "exclude", "overrides", "steps", "dynamic_nodes"):
            _set_tuple(self, name)
        self._read_names()
        if self.calibration_samples is not None and self.calibration_samples < 1:
            raise RecipeError(
                f"{self.calibration_samples} calibration samples measure nothing; ask for one or more, or"
                " leave calibration_samples out to use all."
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
            if isinstance(given[name], str):
                read[name] = scheme_of(None, given[name])
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
        refuse_unknown_fields("A recipe", self.__dataclass_fields__, changes)
        if isinstance(changes.get("weights"), str):
            changes["weights"] = weight_scheme(self.weights, changes["weights"])
        if isinstance(changes.get("activations"), str):
            if changes["activations"] == "dynamic" and not isinstance(self.activations, DynamicScheme):
                changes.setdefault("style", Style.INTEGER)
            changes["activations"] = activation_scheme(self.activations, changes["activations"])
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
        """Plain data; a callable among the patterns can't be written and is an error."""
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
            raise RecipeError(f"Recipe {path} can't be read: {error.strerror}.") from error
        except ValueError as error:
            raise RecipeError(f"Recipe {path} is no text in UTF-8: {error}.") from error
        try:
            data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        except (
            Exception
        ) as error:  # PyYAML lets through whatever a malformed scalar makes int() or a dict raise
            raise RecipeError(f"Recipe {path} is neither YAML nor JSON: {_reason(error)}.") from error
        try:
            return cls.from_dict(data)
        except RecipeError as error:
            raise RecipeError(f"Recipe {path}: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write the recipe as YAML, or as JSON where the file name says so."""
        path = Path(path)
        plain = self.to_dict()
        if path.suffix == ".json":
            text = json.dumps(plain, indent=2, ensure_ascii=False) + "\n"
        else:
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        with replacing([path.absolute()]) as (file,):
            file.write(text.encode())


_PLAIN_FIELDS: dict[str, Any] = {
    "style": Style,
    "placement": Placement,
    "compressed": QType,
    "listing": Listing,
    "writing": WriteOptions,
}


def _with_schemes(data: Any, base: Recipe | None) -> Any:
    """Return plain data of a recipe with schemes in the place of names of types: ``weights: int8``."""
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
    except RecipeError as error:
        raise RecipeError(f"{name}: {error}") from error
    return found


def weight_scheme(current: Scheme | None, name: str) -> Scheme:
    """The scheme of weights with the type of this name; one scale for each channel where none is known."""
    kind = qtype(name)
    base = current if current is not None else Scheme(kind, PerChannel())
    return base.but(qtype=kind, symmetric=kind.symmetric_by_default)


def activation_scheme(current: Scheme | DynamicScheme | None, name: str) -> Scheme | DynamicScheme | None:
    """Return the scheme of activations with the type of this name; ``dynamic`` and ``none`` are names too."""
    if name == "none":
        return None
    if name == "dynamic":
        return current if isinstance(current, DynamicScheme) else DynamicScheme()
    kind = qtype(name)
    match current:
        case Scheme() as scheme:
            return scheme.but(qtype=kind, symmetric=scheme.symmetric or kind.is_float)
        case DynamicScheme():
            return DynamicScheme(kind)
        case _:
            return Scheme(kind, symmetric=kind.is_float)


_MOST_JSON, _MOST_YAML = 16 << 20, 1 << 20  # bytes; YAML takes seconds for each


def _reason(error: Exception) -> str:
    """Why a file could not be parsed, in one line, with the place where PyYAML knows it."""
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

PRESETS: dict[str, Recipe] = {
    "W8A8": W8A8,
    "W8A16": W8A16,
    "W8": W8,
    "W4": W4,
    "W4A16": W4A16,
    "FP8": FP8,
}


def preset(name: str) -> Recipe:
    """The preset of this name: W8A8, W8A16 and FP8 are static, W8 dynamic, W4 and W4A16 weight-only."""
    if name not in PRESETS:
        raise RecipeError(
            f"{name!r} is not a preset{closest(name, PRESETS) or '.'} Known: {', '.join(PRESETS)}."
        )
    return PRESETS[name]


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
    "LayerWeights",
    "Listing",
    "Override",
    "Pattern",
    "Placement",
    "Recipe",
    "Style",
    "WeightOnly",
    "WriteOptions",
    "preset",
]
