"""The vocabulary of the op table: roles say what a tensor is to an operator, forms how integers spell it.

A form's ``operands`` list the inputs of the integer operator in order:

==============  ==========================================================================
``q0 s0 z0``    input 0 quantized, its scale, its zero point
``sy zy``       scale and zero point of output 0
``b2``          input 2 as an int32 bias
``f2``          input 2 as it is (float bias, indices, a shape)
``p2``          input 2 by the parameters of input 0; where it has no entry, the zero point of input 0
``…``           the group before it, once for every further input (Concat)
``rest``        every further input as it is
==============  ==========================================================================

QDQ needs no form: any operator with a rule can stand between DequantizeLinear and QuantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import onnx_ir as ir

from octavo.core.qtypes import QType
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme

Axis: TypeAlias = int | Callable[[ir.Node], int | None]


@dataclass(frozen=True)
class Act:
    """A value that flows through the model."""


@dataclass(frozen=True)
class Weight:
    """A trained constant; where it is computed instead, it counts as an activation.

    ``axis`` is that of the output channels, ``sums`` the one that the operator sums over (blocks lie along
    it); None: one scale for the tensor.
    """

    axis: Axis | None = None
    sums: Axis | None = None


@dataclass(frozen=True)
class Bias:
    """Added to the sum: int32 with the scale of input 0 times that of input 1."""


@dataclass(frozen=True)
class Raw:
    """Never quantized: indices, shapes, conditions, bounds, and floats too small to matter."""


@dataclass(frozen=True)
class Table:
    """A constant whose rows are looked up; a computed one is moved as it is."""


Role: TypeAlias = Act | Weight | Bias | Raw | Table


@dataclass(frozen=True)
class Out:
    """A result with a range of its own; ``low, high`` where mathematics knows it."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Same:
    """Values of input 0, moved: the same parameters hold."""


@dataclass(frozen=True)
class RawOut:
    """Not quantized: indices, or a result that is always left float."""


Result: TypeAlias = Out | Same | RawOut


class Kind(Enum):
    """What an operator is to the planner."""

    PRODUCT = "product"  # sums of products with weights: what quantization is for
    FOLLOWER = "follower"  # worth quantizing between quantized neighbours
    MOVE = "move"  # data movement: parameters pass through
    CLAMP = "clamp"  # Relu and Clip: may be absorbed by a quantized range
    LOOKUP = "lookup"  # rows of a table
    RECURRENT = "recurrent"  # weights only


@dataclass(frozen=True)
class Form:
    """One integer spelling of an operator."""

    op_type: str
    operands: str
    domain: str = ""
    per_channel: bool = True
    one_zero_point: bool = False  # scales per channel, but a single zero point
    pairs: tuple[str, ...] = ("u8u8", "u8s8", "s8s8")  # activation and weight types with a kernel
    float_output: bool = False  # the output may be left float
    attributes: tuple[str, ...] | None = None  # kept; None: all
    refuse: Callable[[ir.Node], str | None] | None = None  # nodes that have a rule, but not this spelling

    def takes(self, activation: QType, weight: QType) -> bool:
        """Whether there is a kernel for these types."""
        pair = "".join(f"{'s' if kind.signed else 'u'}{kind.bits}" for kind in (activation, weight))
        return pair in self.pairs

    def takes_per_channel(self, scheme: Scheme) -> bool:
        """Whether a weight of this scheme may have a scale for each channel."""
        if not self.per_channel:
            return False
        return not self.one_zero_point or (scheme.symmetric and scheme.qtype.signed)


@dataclass(frozen=True)
class OpRule:
    """One row: an operator, what its inputs and outputs are, and its integer spellings."""

    op_type: str
    kind: Kind
    inputs: tuple[Role, ...]
    outputs: tuple[Result, ...] = (Out(),)
    variadic: bool = False  # the last input role holds for all further inputs
    domain: str = ""
    forms: Mapping[Style, Form] = field(default_factory=dict)
    refuse: Callable[[ir.Node], str | None] | None = None
    blends: Callable[[ir.Node], bool] | None = (
        None  # this very node has a range of its own, though the row moves
    )
    note: str = ""

    def role(self, index: int) -> Role:
        """The role of input ``index``."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic and self.inputs else Raw()

    def result(self, node: ir.Node, index: int = 0) -> Result:
        """What output ``index`` of this node is; further outputs are like the last one named."""
        found = self.outputs[min(index, len(self.outputs) - 1)]
        return Out() if isinstance(found, Same) and self.blends is not None and self.blends(node) else found

    def refusal(self, node: ir.Node) -> str | None:
        """Why this very node can't be quantized, or None."""
        return self.refuse(node) if self.refuse is not None else None


def axis_of(axis: Axis | None, node: ir.Node) -> int | None:
    """The axis as a number, for this node."""
    return axis(node) if callable(axis) else axis
