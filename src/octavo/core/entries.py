"""The entries of a plan: what is done with a tensor, or with one consumer's view of it.

An entry sits on a *tensor* (``Key(name)``: the value itself is quantized, every consumer and a graph
output see it) or on an *edge* (``Key(name, consumer)``: only that node sees it quantized, the others keep
the float value). An edge over a tensor that has an entry is a conversion from the one to the other.
Mixed precision needs nothing more.

=========  =====================================================================
Measured   scale and zero point come from calibration
Bounded    they come from a range that is known without data (Sigmoid: 0 … 1)
Shared     they are those of another key: data movement keeps parameters
Derived    an int32 bias: scale = scale of input x times scale of weight w
Fixed      they were given
Constant   a weight: they come from its values
Dynamic    they are computed while the model runs
=========  =====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeAlias

from octavo.core.qtypes import UINT8, QType
from octavo.core.recipe_parts import FloatType
from octavo.core.scheme import Scheme

GRAPH_OUTPUT = ""  # in place of a consumer: what the graph gives out; no node has this name


class Key(NamedTuple):
    """A tensor, or one consumer's view of it."""

    tensor: str
    consumer: str | None = None

    def __str__(self) -> str:
        return self.tensor if self.consumer is None else f"{self.tensor} → {self.consumer}"


@dataclass(frozen=True)
class Measured:
    """Parameters come from calibration of this tensor, or of the one that a clamp makes of it."""

    TAGGED: ClassVar[bool] = True
    scheme: Scheme
    of: str | None = None  # the tensor that is measured; None: this one


@dataclass(frozen=True)
class Bounded:
    """Parameters come from a range that is known without data."""

    TAGGED: ClassVar[bool] = True
    scheme: Scheme
    low: float
    high: float


@dataclass(frozen=True)
class Shared:
    """The same parameters as another key."""

    TAGGED: ClassVar[bool] = True
    tensor: str
    consumer: str | None = None

    @property
    def key(self) -> Key:
        """The entry whose parameters these are."""
        return Key(self.tensor, self.consumer)


@dataclass(frozen=True)
class Derived:
    """An int32 bias, quantized with the product of the scales of input and weight."""

    TAGGED: ClassVar[bool] = True
    x: tuple[str, str | None]
    w: tuple[str, str | None]
    make_room: bool = True  # raise the weight's scale where the bias would not fit


@dataclass(frozen=True)
class Fixed:
    """Parameters that were given."""

    TAGGED: ClassVar[bool] = True
    scheme: Scheme
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """A weight; parameters come from its values."""

    TAGGED: ClassVar[bool] = True
    scheme: Scheme
    algorithm: str | None = None  # of octavo.algorithms.weights; None: rounded to nearest
    range: tuple[float, float] | None = None
    channel_ranges: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True)
class Dynamic:
    """Parameters are computed at run time: for the whole tensor, or for each row of it."""

    TAGGED: ClassVar[bool] = True
    qtype: QType = UINT8
    twice: bool = False  # what rounding leaves is rounded too, with a step 254 times finer
    by_row: bool = False


Entry: TypeAlias = Measured | Bounded | Shared | Derived | Fixed | Constant | Dynamic


@dataclass(frozen=True)
class Skipped:
    """A node that stays float, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Quantized:
    """A node that is quantized.

    ``lowering`` is the operator that it becomes (the same one, in QDQ). A linear layer written as MatMul and
    Add is one node here: ``bias_add`` is the Add that goes into it.
    """

    op_type: str
    lowering: str
    bias_add: str | None = None
    accuracy_level: int = 4  # of MatMulNBits: 4 rounds activations to 8 bits, block by block


@dataclass(frozen=True)
class Compressed:
    """A weight that is stored in integers and read as float: Cast and Mul, folded at load, restore it."""

    scheme: Scheme
    saves: int  # bytes


@dataclass(frozen=True)
class HalfStorage:
    """Float weights stored in 16 bits: a Cast, folded at load, restores them; ``kept`` gives reasons."""

    TAGGED: ClassVar[bool] = True
    float_type: FloatType
    weights: tuple[str, ...]
    kept: dict[str, str] = field(default_factory=dict)  # initializers that stay float32 → why


@dataclass(frozen=True)
class HalfCompute:
    """Float nodes computed in 16 bits, with Casts where float32 begins; ``kept`` gives reasons."""

    TAGGED: ClassVar[bool] = True
    float_type: FloatType
    nodes: tuple[str, ...]
    kept: dict[str, str] = field(default_factory=dict)  # nodes that stay float32 → why
    masks: tuple[str, ...] = ()  # constants whose values are raised into the range
    io: bool = False  # inputs and outputs of the model too
