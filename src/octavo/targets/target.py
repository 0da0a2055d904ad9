"""A target: what a runtime on some hardware accepts and makes fast, as data that the planner reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    least_products: int = 0  # products per result; a Conv with fewer, if not depthwise, is faster in float
    block_products: bool = False  # has a kernel that scales weights and activations block by block
    most_groups: int | None = None  # a grouped, not depthwise Conv with more is slower than float
    least_recurrent: int = 0  # values in W
    sources: tuple[str, ...] = ()
