"""A target: what a runtime on some hardware accepts and makes fast, as data that planner and lint read.

A sheet has a group for each question: what the runtime accepts (:class:`Accepts`), which operators gain by
being quantized (:class:`OpPlacement`), what its kernels make of a quantized graph (:class:`Kernels`), what is
written as another operator because that is faster (:class:`Lowerings`), and what people should know
(:class:`Documentation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from octavo.core.cpu import checked_threads
from octavo.core.recipe import Recipe, Style


@dataclass(frozen=True)
class Accepts:
    """What the runtime loads and computes correctly; anything else is an error or stays in float."""

    styles: tuple[Style, ...]
    activation_types: tuple[str, ...]
    weight_types: tuple[str, ...]
    granularities: tuple[str, ...] = ("tensor", "channel", "block")  # of weights
    channel_ops: frozenset[str] | None = None  # ops whose weights may have a scale per channel; None: all
    block_ops: frozenset[str] | None = None  # ops whose weights may be in blocks; None: all
    symmetric_activations: bool = False  # zero points have to be zero
    symmetric_weights: bool = False
    int32_biases: bool = True  # biases may be int32 behind DequantizeLinear; else they stay float
    min_range: float | None = None  # the narrowest range of an activation
    op_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # op → activation types it takes
    refused: Mapping[str, str] = field(default_factory=dict)  # op → why it has to stay in float
    contrib_ops: bool = True  # takes operators of the domain com.microsoft
    newest_opset: int | None = None  # None: what the installed runtime loads

    def activations_of(self, op_type: str) -> tuple[str, ...]:
        """Return the activation types that an operator may have."""
        return self.op_types.get(op_type, self.activation_types)

    def per_channel(self, op_type: str) -> bool:
        """Whether the weights of an operator may have a scale for each channel."""
        return "channel" in self.granularities and (self.channel_ops is None or op_type in self.channel_ops)


@dataclass(frozen=True)
class ConvPlacement:
    """Which convolutions gain. Work is counted in multiplications per output."""

    first_min_work: int = 0  # a first Conv with less is faster in float
    large_first_min_work: int = 0  # the same for outputs of 64 × 64 and more, and a depthwise Conv behind it
    output_max_work: int = 0  # a 1×1 Conv with no more that computes a model output stays in float
    max_groups: int | None = None  # a grouped, not depthwise Conv with more is slower than float
    depthwise_min_channels: int = 0  # with fewer channels, each by itself, a Conv is faster in float
    idle_depthwise_in_float: bool = False  # a depthwise Conv between float operators is faster in float


@dataclass(frozen=True)
class OpPlacement:
    """Which operators gain by being quantized. Names are those of the op table; refusals carry a reason."""

    linear: frozenset[str]  # with calibrated activations
    dynamic_linear: frozenset[str] = frozenset()  # with activations quantized at run time
    elementwise: frozenset[str] = frozenset()  # between quantized neighbours
    data_movement: frozenset[str] = frozenset()  # run on integers when their parameters are shared
    recurrent: frozenset[str] = frozenset()
    gates: frozenset[str] = frozenset()  # quantized only where one result per channel scales a feature map
    needs_output: frozenset[str] = frozenset()  # linear ops that are fast only when their output is quantized
    kept_in_float: Mapping[str, str] = field(default_factory=dict)  # op → reason
    dynamic_kept_in_float: Mapping[str, str] = field(default_factory=dict)
    min_weight_size: int = 0  # values; a linear operator with fewer gains nothing
    min_recurrent_size: int = 0  # values in W
    convolutions: ConvPlacement = field(default_factory=ConvPlacement)


class OutlierInputs(Enum):
    """How a linear layer reads an input whose outliers leave 8 bits too coarse."""

    IN_FLOAT = "the layer stays in float"
    IN_BLOCKS = "weights and activations scaled block by block"
    SPLIT = "a high and a low part of 8 bits each where that can be written, in blocks elsewhere"


@dataclass(frozen=True)
class Kernels:
    """How the runtime executes a quantized graph."""

    # op → types with integer kernels
    integer_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fused: frozenset[str] = frozenset()  # replaced between Q and DQ by kernels that take 8-bit integers only
    rounds_float_weights: bool = True  # of float layers between Q and DQ, which therefore need a barrier
    runs_patterns_whole: bool = True  # runs a pattern such as HardSwish as one float operator, left alone
    saturates: bool = False  # adds pairs of uint8 × int8 products in 16 bits
    slow_behind_float: frozenset[str] = frozenset()  # slow on integers made for them alone
    outlier_inputs: OutlierInputs = OutlierInputs.IN_FLOAT
    slow_activations: Mapping[str, str] = field(default_factory=dict)  # type → consequence
    slow_weights: Mapping[str, str] = field(default_factory=dict)
    half_types: tuple[str, ...] = ()  # 16-bit float types that it computes in; others only compress weights


@dataclass(frozen=True)
class Lowerings:
    """What is written as another operator because the runtime computes that faster."""

    sum_before: frozenset[str] = frozenset()  # an Add in front of these is slow, as it is fused: Sum instead
    softmax_floor: bool = False  # causally masked scores are raised until their exp is a normal float
    softmax_in_parts: bool = False  # over an axis with two or more behind it
    hard_swish_as_product: bool = False  # of integers: the input and its gate
    gelu_in_one: bool = False  # behind integers, where its parts would not be joined
    shuffle_as_gather: bool = False  # channels exchanged between groups


@dataclass(frozen=True)
class ManyThreads:
    """What holds instead when a model runs with ``threads`` threads or more."""

    threads: int
    first_min_work: int
    large_first_min_work: int
    sum_before: frozenset[str]


@dataclass(frozen=True)
class Documentation:
    """What people should know, in sentences."""

    limits: tuple[str, ...] = ()
    placement: tuple[str, ...] = ()
    preparation: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def placement_without(self, *rules: str) -> tuple[str, ...]:
        """Return the lines on placement but those of rules that do not hold elsewhere."""
        return tuple(line for line in self.placement if line not in rules)


@dataclass(frozen=True)
class Target:
    """The datasheet of a runtime on some hardware."""

    name: str
    summary: str
    static_recipe: Recipe
    dynamic_recipe: Recipe
    accepts: Accepts
    placement: OpPlacement
    kernels: Kernels = field(default_factory=Kernels)
    lowerings: Lowerings = field(default_factory=Lowerings)
    many_threads: ManyThreads | None = None
    runs_here: bool = False  # the installed runtime is this one: results can be compared and timed
    documentation: Documentation = field(default_factory=Documentation)

    def at(self, threads: int | None) -> Target:
        """Return the sheet for models that run with so many threads; None: not known, few are assumed."""
        many = self.many_threads
        threads = checked_threads(threads)
        if many is None or threads is None or threads < many.threads:
            return self
        convolutions = replace(
            self.placement.convolutions,
            first_min_work=many.first_min_work,
            large_first_min_work=many.large_first_min_work,
        )
        return replace(
            self,
            placement=replace(self.placement, convolutions=convolutions),
            lowerings=replace(self.lowerings, sum_before=many.sum_before),
        )

    def is_fast(self, op_type: str, activation: str) -> bool:
        """Whether an operator has kernels for such activations; where none are listed, for all it takes."""
        known = self.kernels.integer_types
        return activation in self.accepts.activations_of(op_type) and (
            not known or activation in known.get(op_type, ())
        )
