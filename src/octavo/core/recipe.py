"""A recipe says what the user wants: types, style, which nodes; it names no tensor's numbers.

Recipes are frozen values. Change one with ``but``, write it as YAML or JSON, read it back::

    W8A8.but(activations=W8A8.activations.but(method=Percentile(99.99)), exclude=("op:Softmax", "/head/*"))
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import yaml

from octavo.core import codec
from octavo.core.bounded import read_bytes
from octavo.core.files import replacing
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, UINT8, UINT16, QType
from octavo.core.scheme import Distribution, Method, Scheme
from octavo.errors import RecipeError, closest

Pattern: TypeAlias = str | Callable[[Any], bool]


class Style(Enum):
    """How a quantized operator is spelled in the graph."""

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


@dataclass(frozen=True)
class Override:
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
    readers: tuple[str, ...] | None = None  # only for these nodes; absent: for every reader
    channel_ranges: tuple[tuple[float, float], ...] | None = None  # a range for each channel

    def __post_init__(self) -> None:
        _set_tuple(self, "range", float)
        _set_tuple(self, "scale", float)
        _set_tuple(self, "zero_point", operator.index)
        _set_tuple(self, "readers", str)
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


def _set_tuple(owner: Any, name: str, kind: Callable[[Any], Any] | None = None) -> None:
    """Make a field of a frozen value a tuple, of plain numbers: one item needs no brackets."""
    value = getattr(owner, name)
    if value is None:
        return
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
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
class Spelling:
    """Which of several ways that mean the same a model is written in."""

    domain: str = ""  # of QuantizeLinear and DequantizeLinear
    dedicated: bool = False  # each reader has a pair of these to itself
    float_weights: bool = False  # weights are stored in float and quantized in the model
    explicit: bool = False  # zero points that are zero too; scales and zero points in typed fields


@dataclass(frozen=True)
class Recipe:
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
    absorb_activations: bool = True
    quantize_embeddings: bool = True
    calibration_samples: int | None = None
    listing: Listing = field(default_factory=Listing)
    spelling: Spelling = field(default_factory=Spelling)
    steps: tuple[str, ...] = ()  # of ``octavo steps``, with options behind colons
    at_run_time: tuple[str, ...] = ()  # linear layers of a static model whose inputs have no fixed range
    stored: QType | None = None  # of the weights of layers that stay float: int8, restored at load

    def __post_init__(self) -> None:
        for name in ("op_types", "include", "exclude", "overrides", "steps", "at_run_time"):
            _set_tuple(self, name)
        if self.calibration_samples is not None and self.calibration_samples < 1:
            raise RecipeError(
                f"{self.calibration_samples} calibration samples measure nothing; ask for one or more, or"
                " leave calibration_samples out to use all."
            )
        if self.stored not in (None, INT8):
            raise RecipeError(
                f"stored: weights that run as float are stored as int8, not as {self.stored}; write int8"
                " or null."
            )

    def but(self, **changes: Any) -> Recipe:
        """A copy with some fields changed."""
        for key in changes:
            if key not in self.__dataclass_fields__:
                known = self.__dataclass_fields__
                raise RecipeError(
                    f"A recipe has no {key!r}{closest(key, known) or '.'} Known: {', '.join(known)}."
                )
        return replace(self, **changes)

    @property
    def is_static(self) -> bool:
        """Whether activations have parameters that calibration has to find."""
        return isinstance(self.activations, Scheme)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; a callable among the patterns can't be written and is an error."""
        plain: dict[str, Any] = codec.encode(self)
        return plain

    @classmethod
    def from_dict(cls, data: Any) -> Recipe:
        """A recipe from plain data: ``base`` names a preset that the other keys change."""
        if isinstance(data, dict) and "base" in data:
            rest = {k: v for k, v in data.items() if k != "base"}
            base = data["base"]
            if not isinstance(base, str):
                raise RecipeError(f"base: expected the name of a preset; known are {', '.join(PRESETS)}.")
            return preset(base)._changed_by(rest)
        recipe: Recipe = codec.decode(cls, data)
        return recipe

    def _changed_by(self, changes: dict[str, Any]) -> Recipe:
        merged = self.to_dict()
        for key, value in changes.items():
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
W4A16 = Recipe(weights=Scheme(INT4, PerBlock(32), symmetric=True), activations=Scheme(UINT16))
FP8 = Recipe(
    weights=Scheme(FLOAT8E4M3FN, PerTensor(), symmetric=True),
    activations=Scheme(FLOAT8E4M3FN, symmetric=True, method=Distribution()),
    placement=Placement.EVERYWHERE,
)
STORED = Recipe(weights=_CHANNEL_INT8, activations=None, op_types=(), stored=INT8)  # nothing is quantized

PRESETS: dict[str, Recipe] = {"W8A8": W8A8, "W8A16": W8A16, "W8": W8, "W4A16": W4A16, "FP8": FP8}


def preset(name: str) -> Recipe:
    """The preset of this name: static W8A8, W8A16, W4A16 and FP8; W8 is dynamic."""
    if name not in PRESETS:
        raise RecipeError(
            f"{name!r} is no preset{closest(name, PRESETS) or '.'} Known: {', '.join(PRESETS)}."
        )
    return PRESETS[name]


__all__ = [
    "FP8",
    "PRESETS",
    "STORED",
    "W4A16",
    "W8",
    "W8A8",
    "W8A16",
    "DynamicScheme",
    "Listing",
    "Override",
    "Pattern",
    "Placement",
    "Recipe",
    "Spelling",
    "Style",
    "preset",
]
