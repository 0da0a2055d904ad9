"""Arrays that are not yet what a model takes: scaled, normalized and transposed while they are read.

::

    x → (x / scale − mean) / std    for each channel, in the model's element type
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.data.images.input_layout import channel_axis
from octavo.data.source import Array, FoundIn, Sample, Source, Specs
from octavo.errors import DataError, RecipeError
from octavo.model.runtime.session import InputSpec

LAYOUTS = ("nchw", "nhwc")


@dataclass(frozen=True)
class Adjusted:
    """Data, and what is done to its arrays; see :func:`arrays`."""

    data: Any
    scale: float | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layout: str | None = None

    def for_inputs(self, specs: Specs) -> Source:
        """Return the samples for a model with these inputs."""
        from octavo.data.readers import source_of  # whose readers are used here

        return AdjustedSource(source_of(self.data, specs), tuple(specs), self)


def arrays(
    data: Any,
    *,
    scale: float | None = None,
    mean: Sequence[float] | float | None = None,
    std: Sequence[float] | float | None = None,
    layout: str | None = None,
) -> Adjusted:
    """Return data whose arrays become inputs by ``(x / scale − mean) / std``.

    Whole numbers such as pixels of 0 … 255 become floating point. ``mean`` and ``std`` hold one number, or
    one for each channel. ``layout`` says where the data has its channels, ``"nchw"`` or ``"nhwc"``: images
    are transposed where the model has them elsewhere.
    """
    if scale is not None and not scale:
        raise RecipeError("A scale can't be 0; give what the values are divided by, such as 255.")
    if layout is not None and layout.lower() not in LAYOUTS:
        raise RecipeError(f"{layout!r} is not a layout; choose {' or '.join(LAYOUTS)}.")
    deviations = _numbers(std)
    if deviations is not None and 0.0 in deviations:
        raise RecipeError("A standard deviation can't be 0; give that of the training data.")
    return Adjusted(data, scale, _numbers(mean), deviations, layout.lower() if layout is not None else None)


def _numbers(given: Sequence[float] | float | None) -> tuple[float, ...] | None:
    if given is None:
        return None
    return (float(given),) if isinstance(given, int | float) else tuple(float(one) for one in given)


@dataclass(frozen=True, eq=False)
class AdjustedSource:
    """The samples of another source, adjusted."""

    inner: Source
    specs: Specs
    how: Adjusted

    @property
    def length(self) -> int | None:
        """Return the number of samples."""
        return self.inner.length

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of the inner source."""
        return tuple(getattr(self.inner, "notes", ()))

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index."""
        for sample in self.inner.portion(first, stop):
            made = dict(sample)
            for spec in self.specs:
                if spec.name in made:
                    made[spec.name] = self._adjusted(made[spec.name], spec)
            yield FoundIn(made, getattr(sample, "where", ""))

    def _adjusted(self, value: Any, spec: InputSpec) -> Any:
        array = np.asarray(value)
        if spec.dtype.kind != "f" or array.dtype.kind not in "uif":
            return value
        array = self._transposed(array, spec)
        how = self.how
        if how.scale is None and how.mean is None and how.std is None:
            return np.ascontiguousarray(array)
        made: Array = array.astype(np.float64 if spec.dtype.itemsize > 4 else np.float32)
        if how.scale is not None:
            made = made / made.dtype.type(how.scale)
        if how.mean is not None:
            made = made - _by_channel(how.mean, made, spec)
        if how.std is not None:
            made = made / _by_channel(how.std, made, spec)
        return np.ascontiguousarray(made.astype(spec.dtype, copy=False))

    def _transposed(self, array: Array, spec: InputSpec) -> Array:
        axis = channel_axis(spec)
        if self.how.layout is None or array.ndim != 4 or axis is None:
            return array
        given = 1 if self.how.layout == "nchw" else 3
        return np.moveaxis(array, given, axis) if given != axis else array


def _by_channel(numbers: tuple[float, ...], array: Array, spec: InputSpec) -> Array:
    """Return numbers, one or one for each channel, in a shape that fits an array."""
    made = np.array(numbers, array.dtype)
    if len(numbers) == 1:
        return made.reshape(())
    axis = channel_axis(spec) or min(1, array.ndim - 1)
    if array.ndim < 2 or array.shape[axis] != len(numbers):
        raise DataError(
            f"There are {len(numbers)} numbers for the channels of the input {spec.name!r}, whose samples"
            f" have shape {list(array.shape)}; give one, or one for each channel."
        )
    shape = [1] * array.ndim
    shape[axis] = len(numbers)
    return made.reshape(shape)
