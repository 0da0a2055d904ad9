"""What steps want to know of a model at work, and what it is called in the statistics."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.algorithms.layers import Layer
from octavo.algorithms.replica import Replica
from octavo.model import query

PREFIX = "octavo/probe/"
WIDEST = 2400  # products; the Gram matrix of more is not computed
MOST = 1 << 29  # bytes of all Gram matrices together; the smallest are taken first


@dataclass(frozen=True)
class Classes:
    """A tensor, and channels of it that share a histogram; without channels all of it does."""

    value: ir.Value
    axis: int = 0
    channels: tuple[tuple[int, ...], ...] = ()


@dataclass
class Wishes:
    """What steps want to know; equal wishes are one."""

    moments: dict[str, tuple[Layer, bool]] = field(default_factory=dict)  # by layer; True: with Gram matrix
    apart: dict[str, Layer] = field(default_factory=dict)  # moments from some samples, whatever else is asked
    channels: dict[str, tuple[ir.Value, int]] = field(default_factory=dict)  # by tensor; the channel axis
    classes: dict[str, Classes] = field(default_factory=dict)  # by tensor
    replicas: dict[str, Replica] = field(default_factory=dict)  # by name

    def moments_of(self, layers: Iterable[Layer], *, gram: bool) -> None:
        """Ask for what layers read."""
        for layer in layers:
            before = self.moments.get(layer.name)
            self.moments[layer.name] = (layer, gram or (before is not None and before[1]))

    def moments_apart(self, layers: Iterable[Layer]) -> None:
        """Ask for what layers read in some samples, to be compared with what others read in the same."""
        self.apart.update((layer.name, layer) for layer in layers)

    def channels_of(self, value: ir.Value, axis: int) -> None:
        """Ask for the extremes of each channel of a tensor."""
        self.channels[value.name or ""] = (value, axis)

    def classes_of(self, classes: Classes) -> None:
        """Ask for histograms of a tensor."""
        self.classes[classes.value.name or ""] = classes

    def replicas_of(self, replicas: Iterable[Replica]) -> None:
        """Ask for the errors of copies of layers."""
        self.replicas.update((replica.name, replica) for replica in replicas)

    def __bool__(self) -> bool:
        return bool(self.moments or self.apart or self.channels or self.classes or self.replicas)


def names_of(layer: Layer, *, apart: bool = False) -> dict[str, str]:
    """What the probes of a layer are called; layers that read the same in the same way share them."""
    node, source = layer.node, layer.x.name
    how = "/apart" if apart else ""
    if layer.is_conv:
        shape = [layer.groups, *layer.kernel]
        for key in ("strides", "pads", "dilations", "auto_pad"):
            shape.append(query.attribute(node, key, ""))
        how += "/" + "_".join(str(part).replace(" ", "") for part in shape)
    return {part: f"{PREFIX}{source}{how}/{part}" for part in ("size", "sum", "square", "gram")}


def class_names(classes: Classes) -> list[str]:
    """What the histograms of a tensor are called; other channels have other names."""
    which = f"{zlib.crc32(repr((classes.axis, classes.channels)).encode()):08x}"
    return [f"{PREFIX}{classes.value.name}/class{which}.{i}" for i in range(max(len(classes.channels), 1))]


def grams(wishes: Wishes) -> set[str]:
    """The Gram matrices that are wished for and neither too large by themselves nor together."""
    sizes = {
        names_of(layer)["gram"]: 8 * layer.groups * layer.products**2
        for layer, gram in wishes.moments.values()
        if gram and layer.products <= WIDEST
    }
    found: set[str] = set()
    left = MOST
    for name in sorted(sizes, key=sizes.__getitem__):
        left -= sizes[name]
        if left < 0:
            break
        found.add(name)
    return found
