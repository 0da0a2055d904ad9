"""Settings for single tensors: what a user requests, and how it changes the entry of a plan."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace

from octavo.core.codec import read_names
from octavo.core.entries import Bounded, Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Shared
from octavo.core.granularity import Granularity
from octavo.core.qtypes import QType
from octavo.core.recipe_parts import set_tuple
from octavo.core.scheme import Method
from octavo.core.shown import Brief
from octavo.errors import RecipeError


@dataclass(frozen=True, repr=False)
class Override(Brief):
    """Other settings for the tensors whose name matches: fields left None keep the recipe's.

    A type, granularity or method may be given by name; a scale or zero point as a plain number, and any of
    the sequences as a list or an array.
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
        read_names(self, {"qtype": QType, "granularity": Granularity, "method": Method})
        set_tuple(self, "range", float)
        set_tuple(self, "scale", float)
        set_tuple(self, "zero_point", operator.index)
        set_tuple(self, "consumers", str)
        what = f"Tensor {self.tensor!r}"
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

    def changed(self, key: Key, entry: Entry) -> Entry:
        """Return an entry with these settings; one that follows from other tensors is an error."""
        match entry:
            case Shared():
                raise RecipeError(f"{key} takes the parameters of {str(entry.key)!r}; set those.")
            case Derived():
                raise RecipeError(
                    f"{key} is a bias, whose scale follows from its input and its weight; set those."
                )
            case Dynamic():
                raise RecipeError(f"{key} has its parameters computed while the model runs.")
        names = ("qtype", "granularity", "symmetric", "reduce_range", "method")
        said = {name: value for name in names if (value := getattr(self, name)) is not None}
        scheme = entry.scheme.but(**said)
        if self.scale is not None and self.zero_point is not None:
            return Fixed(scheme, self.scale, self.zero_point)
        if isinstance(entry, Constant):
            bounds, by_channel = self.range or entry.range, self.channel_ranges or entry.channel_ranges
            return replace(entry, scheme=scheme, range=bounds, channel_ranges=by_channel)
        if self.range is not None:
            return Bounded(scheme, *self.range)
        if isinstance(entry, Bounded | Fixed) and (
            "method" in said or (isinstance(entry, Fixed) and "qtype" in said)
        ):
            return Measured(scheme)
        return replace(entry, scheme=scheme)
