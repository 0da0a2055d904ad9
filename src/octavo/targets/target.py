"""A target: what a runtime on some hardware accepts and makes fast, as data that planner and lint read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.core.recipe import Recipe, Style


@dataclass(frozen=True)
class Target:
    """A datasheet. Operator names are those of the op table; each refusal carries its reason."""

    name: str
    summary: str
    styles: tuple[Style, ...]
    activation_types: tuple[str, ...]
    weight_types: tuple[str, ...]
    static_recipe: Recipe
    dynamic_recipe: Recipe
    products: frozenset[str]  # worth quantizing with calibrated activations
    dynamic_products: frozenset[str]  # worth quantizing with activations quantized at run time
    followers: frozenset[str]  # worth quantizing between quantized neighbours
    moves: frozenset[str]  # run on integers when their parameters are shared
    needs_output: frozenset[str]  # products that are fast only when their output is quantized
    fuses: frozenset[str] = frozenset()  # replaced between Q and DQ by kernels that take 8-bit integers only
    recurrent: frozenset[str] = frozenset()
    stays_float: Mapping[str, str] = field(default_factory=dict)  # op type → reason
    dynamic_stays_float: Mapping[str, str] = field(default_factory=dict)
    least_weight: int = 0  # values; a product with fewer gains nothing
    least_products: int = 0  # for each result; a first Conv with fewer is faster in float
    large_products: int = 0  # the same for results of 64 × 64 and more; so is a depthwise Conv behind it
    answer_products: int = 0  # for each result; a 1×1 Conv of no more that gives an answer stays float
    block_products: bool = False  # has a kernel that scales weights and activations block by block
    two_passes: bool = False  # an input in two passes of 8 bits is faster than such blocks
    idle_depthwise: bool = False  # a depthwise Conv between float operators is faster in float
    most_groups: int | None = None  # a grouped, not depthwise Conv with more is slower than float
    least_recurrent: int = 0  # values in W
    slow_with_add: frozenset[str] = frozenset()  # slower once the runtime has joined them with an Add
    softmax_floored: bool = False  # slow on masked scores, unless these are raised a little
    softmax_spelled: bool = False  # over an axis with two or more behind it, its parts are faster
    gates: frozenset[str] = frozenset()  # float alone, worth it where one result a channel scales a picture
    hard_swish_gated: bool = False  # faster as a product of integers with its input, cut off
    shuffles_gathered: bool = False  # channels exchanged between groups are faster as one Gather
    many_threads: int | None = None  # from so many on, other rules hold
    with_many: Mapping[str, Any] = field(default_factory=dict)  # fields of this sheet, as they are then
    # ---- what it accepts
    granularities: tuple[str, ...] = ("tensor", "channel", "block")  # of weights
    channel_ops: frozenset[str] | None = None  # ops whose weights may have a scale a channel; None: all
    block_ops: frozenset[str] | None = None  # ops whose weights may be in blocks; None: all
    symmetric_activations: bool = False  # zero points have to be zero
    symmetric_weights: bool = False
    int32_biases: bool = True  # biases may be int32 behind DequantizeLinear; else they stay float
    least_range: float | None = None  # the narrowest range of an activation
    op_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # op → activation types it takes
    refuses: Mapping[str, str] = field(default_factory=dict)  # op → why it has to stay float
    contrib: bool = True  # takes operators of the domain com.microsoft
    newest_opset: int | None = None  # None: what the installed runtime loads
    computes_in: tuple[str, ...] = ()  # 16-bit float types with kernels of their own; others are stored alone
    # ---- what it makes of it
    keeps_units: bool = True  # runs a pattern such as HardSwish as one float operator, if it is left alone
    kernels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # op → types it has integers for
    runs_here: bool = False  # the graph that runs can be asked of the installed runtime
    rewrites: bool = True  # rounds the weights of float layers between Q and DQ: they need a guard
    saturates: bool = False  # adds pairs of uint8 × int8 products in 16 bits
    slow_activations: Mapping[str, str] = field(default_factory=dict)  # type → consequence
    slow_weights: Mapping[str, str] = field(default_factory=dict)
    # ---- words
    limits: tuple[str, ...] = ()
    placement: tuple[str, ...] = ()
    preparation: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def at(self, threads: int | None) -> Target:
        """The sheet for models that run with so many threads; None: not known, and few are assumed."""
        many = threads is not None and self.many_threads is not None and threads >= self.many_threads
        return replace(self, **self.with_many) if many else self

    def takes(self, op_type: str) -> tuple[str, ...]:
        """The activation types that an operator may have here."""
        return self.op_types.get(op_type, self.activation_types)

    def is_fast(self, op_type: str, activation: str) -> bool:
        """Whether an operator has kernels for such activations; where none are listed, for all it takes."""
        return activation in self.takes(op_type) and (
            not self.kernels or activation in self.kernels.get(op_type, ())
        )

    def takes_channels(self, op_type: str) -> bool:
        """Whether the weights of an operator may have a scale for each channel."""
        return "channel" in self.granularities and (self.channel_ops is None or op_type in self.channel_ops)
