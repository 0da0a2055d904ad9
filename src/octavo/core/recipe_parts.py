"""What a recipe is put together from: the choices that it has, and groups of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from octavo.core.qtypes import QType
from octavo.errors import RecipeError, closest

Pattern: TypeAlias = str | Callable[[Any], bool]


class FloatType(Enum):
    """A 16-bit float type for what is not quantized."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class HalfPrecision:
    """16-bit floats where nothing is quantized. ``float_type`` and ``compute`` None follow the target.

    A target whose kernels compute in the type gets a graph in it; for another one weights are stored in it
    and restored at load. ``io`` changes the types of the model's inputs and outputs too.
    """

    float_type: FloatType | None = None
    compute: bool | None = None
    io: bool = False

    @classmethod
    def parse(cls, text: str) -> HalfPrecision:
        """Return what ``fp16``, ``bf16:storage`` or ``auto:compute`` means."""
        name, _, way = text.partition(":")
        if name not in _FLOAT_TYPES or way not in _WAYS:
            raise RecipeError(
                f"float type {text!r} is not known{closest(name, _FLOAT_TYPES) or '.'} Write fp16, bf16 or"
                " auto, with :compute or :storage behind it to say which."
            )
        return cls(_FLOAT_TYPES[name], _WAYS[way])

    def type_for(self, types: Sequence[str]) -> FloatType:
        """Return the type, for a target that computes in these."""
        return self.float_type or (FloatType(types[0]) if types else FloatType.FLOAT16)


_FLOAT_TYPES: dict[str, FloatType | None] = {
    "fp16": FloatType.FLOAT16, "float16": FloatType.FLOAT16, "half": FloatType.FLOAT16,
    "bf16": FloatType.BFLOAT16, "bfloat16": FloatType.BFLOAT16, "auto": None,
}  # fmt: skip
_WAYS = {"": None, "compute": True, "storage": False}


class Style(Enum):
    """How quantized operators are written in the graph."""

    QDQ = "qdq"  # float operators between QuantizeLinear and DequantizeLinear; the runtime fuses
    QOPERATOR = "qoperator"  # QLinearConv, QLinearMatMul, …
    INTEGER = "integer"  # MatMulInteger, ConvInteger, … with float results


class Placement(Enum):
    """Which of the operators that can be quantized are quantized."""

    TARGET = "target"  # where the target's kernels gain by it
    EVERYWHERE = "everywhere"  # every operator that has a rule
    LISTED = "listed"  # every node of the op types listed, by its own rule, whatever its neighbours gain


@dataclass(frozen=True)
class Listing:
    """Settings of the placement ``listed`` besides the op types."""

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
    # A node, its int32 bias, and the two that give the scale.
    biases: tuple[tuple[str, str, str, str], ...] = ()

    def __post_init__(self) -> None:
        set_tuple(self, "float_outputs")
        set_tuple(self, "tensors")
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
    8 bits, block by block; 0 leaves it to the runtime, which has a kernel in float for 4 bits alone.
    """

    algorithm: str = "auto"  # name:option=value:…; auto: by the data and the model
    accuracy_level: int = 4
    head: QType | None = None  # of the product that makes an output, such as logits; None: as the others
    embeddings: QType | None = None  # of tables that are looked up; None: they stay float
    table_axis: int = -1  # along which the blocks of a table run
    whole_columns: bool = False  # QDQ: a block is all that one output is computed from
    layers: tuple[LayerWeights, ...] = ()
    average_bits: float | None = None  # layers get 2, 4 or 8 bits by their sensitivity, so many on average
    size: float | None = None  # the same, so that all weights take this part of float's bytes

    def __post_init__(self) -> None:
        set_tuple(self, "layers")
        if self.average_bits is not None and not 2 <= self.average_bits <= 8:
            raise RecipeError(f"Weights have 2 to 8 bits on average, not {self.average_bits:g}.")
        if self.size is not None and not 0 < self.size < 1:
            raise RecipeError(f"size is a part of float's bytes, between 0 and 1, not {self.size:g}.")
        if self.size is not None and self.average_bits is not None:
            raise RecipeError("size and bits both say how large weights may be; leave one of them out.")
        if self.accuracy_level not in range(5):
            raise RecipeError(f"accuracy_level is 0, 1, 2, 3 or 4, not {self.accuracy_level}.")

    @property
    def by_sensitivity(self) -> bool:
        """Whether layers get bits of their own, by measurements."""
        return self.average_bits is not None or self.size is not None


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


NO_STEPS = "none"  # the word for an empty list of steps, in a call, a recipe and on the command line
_COMMA_LISTS = ("op_types", "steps", "float_outputs")  # names that have no comma in them


def set_tuple(owner: Any, name: str, kind: Callable[[Any], Any] | None = None) -> None:
    """Make a field of a frozen value a tuple, of plain numbers: one item needs no brackets."""
    value = getattr(owner, name)
    if value is None or (type(value) is tuple and kind is None):
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
