"""Plausibility of data: what looks wrong is said as a warning, since only its owner can know.

The first samples are looked at as they pass by: samples that are all the same, a channel that never changes,
images that lack their scaling. Token ids, bytes and other whole-number inputs are not looked at.

Whether an input expects values near 1 is read off the model. Where nothing but convolutions reads it, weights
``w`` with ``rms(w) · √fan_in`` near 1 turn values near 1 into values near 1; a layer made for 0 … 255 has
weights about a hundred times smaller.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.data.images.input_layout import channel_axis
from octavo.data.source import Specs
from octavo.model.graph import query
from octavo.model.graph.operators import NORMALIZATIONS
from octavo.model.runtime.session import InputSpec

LOOKED_AT = 64  # samples
CHECK_DATA = "check the calibration data:"  # how every warning about it begins

_MIN_GAIN = 0.1  # rms(w) · √fan_in of a layer that expects values near 1; the other kind has about 0.01
_BRIGHT_VALUE = 64  # an image of bytes has a value above this
_SCALED_TWICE = 1.01 / 255  # the largest value of an image that was divided by 255 twice
_MIN_SAMPLES = 4  # before a channel that never changes tells anything


class Plausibility:
    """Looks at the first samples."""

    def __init__(self, specs: Specs, near_one: Collection[str] = ()) -> None:
        self.samples = 0
        self._digests: set[bytes] = set()
        self._images = {
            spec.name: _ImageInput(spec, spec.name in near_one)
            for spec in specs
            if spec.dtype.kind in "fV" and channel_axis(spec)
        }

    def add(self, sample: Mapping[str, npt.NDArray[Any]], digest: bytes) -> None:
        """Look at one more sample."""
        if self.samples >= LOOKED_AT:
            return
        self.samples += 1
        self._digests.add(digest)
        for name, images in self._images.items():
            images.add(sample[name])

    def warnings(self) -> tuple[str, ...]:
        """Return sentences about what looks wrong."""
        found = []
        all_same = self.samples > 1 and len(self._digests) == 1
        if all_same:
            number = f"first {LOOKED_AT}" if self.samples == LOOKED_AT else str(self.samples)
            found.append(f"{CHECK_DATA} the {number} samples are all the same; ranges need different ones")
        for images in self._images.values():
            found += images.scale_warnings()
            if not all_same:
                found += images.channel_warnings()
        return tuple(found)


class _ImageInput:
    """The values of one input of images."""

    def __init__(self, spec: InputSpec, near_one: bool) -> None:
        self.name = spec.name
        self.near_one = near_one
        self.axis = channel_axis(spec) or 1
        self.low: npt.NDArray[Any] = np.array([np.inf], np.float32)  # of each channel
        self.high: npt.NDArray[Any] = np.array([-np.inf], np.float32)
        self.samples = 0
        self.whole_numbers = True

    def add(self, array: npt.NDArray[Any]) -> None:
        if not array.size:
            return
        values = array.astype(np.float32, copy=False)
        rest = tuple(axis for axis in range(4) if axis != self.axis)
        self.low = np.minimum(self.low, values.min(rest))
        self.high = np.maximum(self.high, values.max(rest))
        self.whole_numbers = self.whole_numbers and bool(np.array_equal(values, np.rint(values)))
        self.samples += 1

    def scale_warnings(self) -> list[str]:
        low, high = float(np.min(self.low)), float(np.max(self.high))
        if not self.near_one or low < 0:
            return []
        expected = "and the first layer expects values near 1: the images may"
        if self.whole_numbers and _BRIGHT_VALUE < high <= 255:
            return [
                f"{CHECK_DATA} the input {self.name!r} gets whole numbers from {low:g} to {high:g}, "
                f"{expected} lack the scaling of training, such as scale=255"
            ]
        if 0 < high <= _SCALED_TWICE:
            return [
                f"{CHECK_DATA} the input {self.name!r} gets values from {low:g} to {high:.2g}, "
                f"{expected} have been divided by 255 twice"
            ]
        return []

    def channel_warnings(self) -> list[str]:
        constant = np.flatnonzero(self.low == self.high)
        if self.samples < _MIN_SAMPLES or not 0 < constant.size < self.low.size:
            return []
        listed = ", ".join(f"{channel} ({self.low[channel]:g})" for channel in constant)
        return [
            f"{CHECK_DATA} the input {self.name!r} has the same value everywhere in channel {listed} of all "
            f"{self.samples} samples looked at"
        ]


def inputs_near_one(model: ir.Model) -> frozenset[str]:
    """Return the inputs whose first layers, all of them convolutions, are made for values near 1."""
    return frozenset(value.name or "" for value in model.graph.inputs if _is_near_one(value))


def _is_near_one(value: ir.Value) -> bool:
    nodes = query.readers(value)
    if len(nodes) == 1 and nodes[0].op_type == "Cast":
        nodes = query.readers(nodes[0].outputs[0])
    return bool(nodes) and all(node.op_type == "Conv" and _gain(node) > _MIN_GAIN for node in nodes)


def _gain(node: ir.Node) -> float:
    """Return ``rms(w) · √fan_in`` of a convolution; 0 before a normalization, where any scale will do."""
    if any(after.op_type in NORMALIZATIONS for after in query.readers(node.outputs[0])):
        return 0.0
    weights = query.array(node.inputs[1])
    if weights is None or not weights.size:
        return 0.0
    square = float(np.mean(np.square(weights.astype(np.float64))))
    return math.sqrt(square * math.prod(weights.shape[1:]))
