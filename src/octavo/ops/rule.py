"""The vocabulary of the op table: roles of inputs and outputs, and the integer operators of each style.

The ``operands`` of a lowering list the inputs of the integer operator in order:

==============  ==========================================================================
``q0 s0 z0``    input 0 quantized, its scale, its zero point
``sy zy``       scale and zero point of output 0
``b2``          input 2 as an int32 bias
``f2``          input 2 as it is (float bias, indices, a shape)
``p2``          input 2 by the parameters of input 0; where it has no entry, the zero point of input 0
``…``           the group before it, once for every further input (Concat)
``rest``        every further input as it is
==============  ==========================================================================

QDQ needs no lowering: any operator with a rule can stand between DequantizeLinear and QuantizeLinear.
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
Refusal: TypeAlias = Callable[[ir.Node], str | None]

REMOVED = ""  # Quantized.lowering of a clamp that has no integer operator: its output is its input


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
    """A result with a range of its own; ``low, high`` where mathematics knows both ends."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (self.low is None) is not (self.high is None):
            raise ValueError("A known range has both ends: give low and high, or neither.")


@dataclass(frozen=True)
class Same:
    """Values of input 0, moved: the same parameters hold."""


@dataclass(frozen=True)
class RawOut:
    """Not quantized: indices, or a result that is always left float."""


Result: TypeAlias = Out | Same | RawOut


class Kind(Enum):
    """What an operator is to the planner."""

    LINEAR = "linear"  # sums of products with weights: what quantization is for
    ELEMENTWISE = "elementwise"  # activations, sums, pooling: worth quantizing between quantized neighbours
    DATA_MOVEMENT = "data movement"  # parameters pass through
    CLAMP = "clamp"  # Relu and Clip: may be fused into a quantized range
    LOOKUP = "lookup"  # rows of a table
    RECURRENT = "recurrent"  # weights only
    EXPERTS = "experts"  # matrices that a router chooses among: weights only, in blocks


@dataclass(frozen=True)
class Lowering:
    """One integer operator that computes what a float operator does."""

    op_type: str
    operands: str
    domain: str = ""
    per_channel: bool = True
    one_zero_point: bool = False  # scales per channel, but a single zero point
    pairs: tuple[str, ...] = ("u8u8", "u8s8", "s8s8")  # activation and weight types with a kernel
    float_output: bool = False  # the output may be left float
    attributes: tuple[str, ...] | None = None  # those that it keeps; None: all
    refuse: Refusal | None = None  # why a node that has a rule can't be lowered so
    output_scale: float | None = None  # of every result, with the lowest zero point: built into the kernel

    @property
    def gives_sums(self) -> bool:
        """Whether the result is int32 sums, which further nodes scale to floats."""
        return not self.float_output and self.operands == "q0 q1 z0 z1"

    def takes(self, activation: QType, weight: QType) -> bool:
        """Whether there is a kernel for these types."""
        pair = "".join(f"{'s' if kind.signed else 'u'}{kind.bits}" for kind in (activation, weight))
        return pair in self.pairs

    def takes_per_channel(self, scheme: Scheme) -> bool:
        """Whether a weight of this scheme may have a scale for each channel."""
        if not self.per_channel:
            return False
        return not self.one_zero_point or (scheme.symmetric and scheme.qtype.signed)

    def refusal(self, node: ir.Node) -> str | None:
        """Return why this very node can't be lowered so, or None."""
        return self.refuse(node) if self.refuse is not None else None


@dataclass(frozen=True)
class OpRule:
    """One row: an operator, what its inputs and outputs are, and its integer operators by style."""

    op_type: str
    kind: Kind
    inputs: tuple[Role, ...]
    outputs: tuple[Result, ...] = (Out(),)
    variadic: bool = False  # the last input role holds for all further inputs
    domain: str = ""
    lowerings: Mapping[Style, Lowering] = field(default_factory=dict)
    refuse: Refusal | None = None  # why a node stays float in every style
    unfused: Refusal | None = None  # why the runtime leaves a node float between Q and DQ
    blends: Callable[[ir.Node], bool] | None = None  # this node has a range of its own, though the row moves
    convolves: bool = False  # slides a kernel over feature maps
    breaks_ties: bool = False  # chooses among equal values, of which rounding makes more
    note: str = ""

    @property
    def is_linear(self) -> bool:
        """Whether the operator sums products with weights."""
        return self.kind is Kind.LINEAR

    @property
    def is_clamp(self) -> bool:
        """Whether the operator cuts values off at bounds: Relu and Clip."""
        return self.kind is Kind.CLAMP

    @property
    def is_matrix_product(self) -> bool:
        """Whether the operator multiplies by a matrix, as MatMul and Gemm do."""
        lowering = self.lowerings.get(Style.INTEGER)
        return lowering is not None and lowering.op_type == "MatMulInteger"

    @property
    def is_matrix_for_each_group(self) -> bool:
        """Whether a constant weight is one matrix for each group of channels: Conv, Gemm and MatMul."""
        lowering = self.lowerings.get(Style.INTEGER)
        return self.is_linear and lowering is not None and lowering.gives_sums

    @property
    def has_bias(self) -> bool:
        """Whether one of the inputs is a bias: Conv, ConvTranspose and Gemm, but not MatMul."""
        return any(isinstance(role, Bias) for role in self.inputs)

    @property
    def passes_values(self) -> bool:
        """Whether results are values of input 0: moved, looked up or clamped."""
        return self.kind in (Kind.DATA_MOVEMENT, Kind.CLAMP, Kind.LOOKUP)

    @property
    def moves_values(self) -> bool:
        """Whether output 0 holds values of input 0 and no others, in another place or order."""
        return isinstance(self.outputs[0], Same)

    def role(self, index: int) -> Role:
        """Return the role of input ``index``."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.variadic and self.inputs else Raw()

    def reads(self, node: ir.Node, *roles: type[Role]) -> list[ir.Value]:
        """Return the values that a node reads in any of some roles."""
        found, named = node.inputs, len(self.inputs)
        read = [
            v
            for v, role in zip(found, self.inputs, strict=False)
            if v is not None and isinstance(role, roles)
        ]
        if self.variadic and len(found) > named and isinstance(self.inputs[-1], roles):
            read += [v for v in found[named:] if v is not None]
        return read

    def result(self, node: ir.Node, index: int = 0) -> Result:
        """Return what output ``index`` of this node is; further outputs are like the last one named."""
        found = self.outputs[min(index, len(self.outputs) - 1)]
        return Out() if isinstance(found, Same) and self.blends is not None and self.blends(node) else found

    def refusal(self, node: ir.Node) -> str | None:
        """Return why this very node can't be quantized, or None."""
        return self.refuse(node) if self.refuse is not None else None


def axis_of(axis: Axis | None, node: ir.Node) -> int | None:
    """Return the axis as a number, for this node."""
    return axis(node) if callable(axis) else axis
