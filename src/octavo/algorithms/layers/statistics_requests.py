"""Statistics that steps request of a running model, and their names among all statistics."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.algorithms.layers.layer import Layer
from octavo.algorithms.layers.replica import Replica
from octavo.model.graph import query

PREFIX = "octavo/probe/"
WIDEST_GRAM = 2400  # products of an output; the Gram matrix of more would take longer than all else
ALL_GRAMS = 1 << 29  # bytes of all Gram matrices together; the smallest are taken first


@dataclass(frozen=True)
class ChannelClasses:
    """A tensor, and the classes of its channels that each share a histogram; none: one histogram for all."""

    value: ir.Value
    axis: int = 0
    channels: tuple[tuple[int, ...], ...] = ()


@dataclass
class StatisticsRequests:
    """What steps request; equal requests are one."""

    moments: dict[str, tuple[Layer, bool]] = field(default_factory=dict)  # by layer; True: with Gram matrix
    sampled_moments: dict[str, Layer] = field(default_factory=dict)  # from some samples, beside the others
    extremes: dict[str, tuple[ir.Value, tuple[int, ...]]] = field(
        default_factory=dict
    )  # with axes of channels
    histograms: dict[str, ChannelClasses] = field(default_factory=dict)  # by tensor
    replicas: dict[str, Replica] = field(default_factory=dict)  # by name
    every_gram: bool = False  # however large they are: an algorithm can't do without

    def add_moments(self, layers: Iterable[Layer], *, gram: bool) -> None:
        """Request the moments of what layers read."""
        for layer in layers:
            before = self.moments.get(layer.name)
            self.moments[layer.name] = (layer, gram or (before is not None and before[1]))

    def add_sampled_moments(self, layers: Iterable[Layer]) -> None:
        """Request the moments of what layers read in some samples, to compare them with other runs."""
        self.sampled_moments.update((layer.name, layer) for layer in layers)

    def add_extremes(self, value: ir.Value, *axes: int) -> None:
        """Request minimum and maximum of each channel of a tensor, which lie along one axis or several."""
        self.extremes[value.name or ""] = (value, axes)

    def add_histograms(self, classes: ChannelClasses) -> None:
        """Request histograms of a tensor."""
        self.histograms[classes.value.name or ""] = classes

    def add_replicas(self, replicas: Iterable[Replica]) -> None:
        """Request the errors of copies of layers."""
        self.replicas.update((replica.name, replica) for replica in replicas)

    def affordable_grams(self) -> set[str]:
        """Return the names of the Gram matrices that fit within the limits, each and all together."""
        sizes = {
            moment_names(layer)["gram"]: 8 * layer.groups * layer.products**2
            for layer, gram in self.moments.values()
            if gram and (self.every_gram or layer.products <= WIDEST_GRAM)
        }
        if self.every_gram:
            return set(sizes)
        found: set[str] = set()
        left = ALL_GRAMS
        for name in sorted(sizes, key=sizes.__getitem__):
            left -= sizes[name]
            if left < 0:
                break
            found.add(name)
        return found


def moment_names(layer: Layer, *, sampled: bool = False) -> dict[str, str]:
    """Return the names of a layer's moments; layers that read the same values in the same way share them."""
    node, source = layer.node, layer.x.name
    how = "/apart" if sampled else ""
    if layer.is_conv:
        shape = [layer.groups, *layer.kernel]
        for key in ("strides", "pads", "dilations", "auto_pad"):
            shape.append(query.attribute(node, key, ""))
        how += "/" + "_".join(str(part).replace(" ", "") for part in shape)
    return {part: f"{PREFIX}{source}{how}/{part}" for part in ("size", "sum", "square", "gram")}


def histogram_names(classes: ChannelClasses) -> list[str]:
    """Return the names of a tensor's histograms; other channels have other names."""
    which = f"{zlib.crc32(repr((classes.axis, classes.channels)).encode()):08x}"
    return [f"{PREFIX}{classes.value.name}/class{which}.{i}" for i in range(max(len(classes.channels), 1))]
