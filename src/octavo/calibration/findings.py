"""What looks wrong about calibration data: said as a warning, since only its owner can know.

The first samples are looked at while they pass by: samples that are all the same, a channel that never
changes, pictures that lack their scaling. Token ids, bytes and other whole-number inputs are left alone.

Whether an input expects small values is read off the model. Where nothing but convolutions reads it, weights
``w`` with ``rms(w) · √fan_in`` near 1 turn values near 1 into values near 1; a layer made for 0 … 255 has
weights about a hundred times smaller.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.calibration.readers.layout import channel_axis
from octavo.model import query
from octavo.model.session import InputSpec

SEEN = 64  # samples that are looked at

_GAIN = 0.1  # rms(w) · √fan_in: above, a layer expects values near 1
_BRIGHT = 64  # a picture of bytes has a value above this
_TWICE = 1.01 / 255  # the largest value of a picture that was divided by 255 two times
_FEW = 4  # samples, before a channel that never changes says anything
_NORMALIZING = frozenset(
    {
        "BatchNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "LayerNormalization",
        "LpNormalization",
    }
)


class Findings:
    """An observer of the first samples."""

    def __init__(self, specs: Sequence[InputSpec], small: Collection[str] = ()) -> None:
        self.samples = 0
        self._digests: set[bytes] = set()
        self._pictures = {
            spec.name: _Pictures(spec, spec.name in small)
            for spec in specs
            if spec.dtype.kind in "fV" and channel_axis(spec)
        }

    def add(self, sample: Mapping[str, npt.NDArray[Any]], digest: bytes) -> None:
        """Look at one more sample."""
        if self.samples >= SEEN:
            return
        self.samples += 1
        self._digests.add(digest)
        for name, pictures in self._pictures.items():
            pictures.add(sample[name])

    def sentences(self) -> tuple[str, ...]:
        """What was found."""
        found = []
        alike = self.samples > 1 and len(self._digests) == 1
        if alike:
            number = f"first {SEEN}" if self.samples == SEEN else str(self.samples)
            found.append(
                f"the {number} samples of the calibration data are all the same; ranges need different ones"
            )
        for pictures in self._pictures.values():
            found += pictures.sentences(alike=alike)
        return tuple(found)


class _Pictures:
    """What the values of one input of pictures are like."""

    def __init__(self, spec: InputSpec, small: bool) -> None:
        self.name = spec.name
        self.small = small
        self.axis = channel_axis(spec) or 1
        self.low = np.float32(np.inf)
        self.high = np.float32(-np.inf)
        self.samples = 0
        self.whole = True

    def add(self, array: npt.NDArray[Any]) -> None:
        if not array.size:
            return
        values = array.astype(np.float32, copy=False)
        rest = tuple(axis for axis in range(4) if axis != self.axis)
        self.low = np.minimum(self.low, values.min(rest))
        self.high = np.maximum(self.high, values.max(rest))
        self.whole = self.whole and bool(np.array_equal(values, np.rint(values)))
        self.samples += 1

    def sentences(self, *, alike: bool) -> list[str]:
        if not self.samples:
            return []
        low, high = float(np.min(self.low)), float(np.max(self.high))
        found = []
        if self.small and self.whole and low >= 0 and _BRIGHT < high <= 255:
            found.append(
                f"the input {self.name!r} gets whole numbers from {low:g} to {high:g}, and the model's first "
                "layer expects values near 1: the pictures may lack the scaling of training, such as x / 255"
            )
        if self.small and low >= 0 and 0 < high <= _TWICE:
            found.append(
                f"the input {self.name!r} gets values from {low:g} to {high:.2g}, and the model's first "
                "layer expects values near 1: the pictures may have been divided by 255 two times"
            )
        still = np.flatnonzero(np.atleast_1d(self.low == self.high))
        varied = 0 < still.size < np.size(self.low)
        if varied and self.samples >= _FEW and not alike:
            values = np.atleast_1d(self.low)
            listed = ", ".join(f"{channel} ({values[channel]:g})" for channel in still)
            found.append(
                f"the input {self.name!r} has the same value everywhere in channel {listed} of all "
                f"{self.samples} samples looked at"
            )
        return found


def expects_small(model: ir.Model) -> frozenset[str]:
    """The inputs whose first layers, all of them convolutions, are made for values near 1."""
    return frozenset(value.name or "" for value in model.graph.inputs if _small(value))


def _small(value: ir.Value) -> bool:
    readers = query.readers(value)
    if len(readers) == 1 and readers[0].op_type == "Cast":
        readers = query.readers(readers[0].outputs[0])
    return bool(readers) and all(node.op_type == "Conv" and _gain(node) > _GAIN for node in readers)


def _gain(node: ir.Node) -> float:
    """``rms(w) · √fan_in`` of a convolution; 0 where a normalization follows, which makes any scale good."""
    if any(reader.op_type in _NORMALIZING for reader in query.readers(node.outputs[0])):
        return 0.0
    weights = query.array(node.inputs[1])
    if weights is None or not weights.size:
        return 0.0
    square = float(np.mean(np.square(weights.astype(np.float64))))
    return math.sqrt(square * math.prod(weights.shape[1:]))
