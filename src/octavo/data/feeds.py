"""Feeds: whatever data the caller has, as a stream of ``{input name: array}`` samples that fit the model.

:mod:`.readers` makes a source of samples out of paths, arrays, iterables, readers and more. Each sample is
checked here against the model's inputs before the runtime sees it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Union

import numpy as np

from octavo.core.arguments import check_arguments
from octavo.data.images.input_layout import channel_axis
from octavo.data.readers import source_of
from octavo.data.readers.python_objects import OneWay, Reader
from octavo.data.source import Array, Given, Sample, Source, Specs, described, innermost, least
from octavo.errors import DataError, closest
from octavo.model.runtime.session import InputSpec

Data: TypeAlias = Union[Iterable[Any], Reader, Given, Array, str, "os.PathLike[str]"]

MAX_UNCOUNTED = 10_000  # samples taken of data that can't tell its length, where no limit is given


class Feeds:
    """Samples that can be iterated over again and again, where the source allows it.

    ``length`` is the number of samples, or None where only iterating over them would tell. Of data that can't
    tell, and may never end, ``MAX_UNCOUNTED`` are taken unless a limit is given; ``cut_short`` is then set.
    """

    def __init__(self, data: Data, specs: Specs, *, limit: int | None = None) -> None:
        check_arguments(samples=limit)
        if limit is not None and limit < 1:
            raise DataError(f"A limit of {limit} samples leaves nothing to calibrate with; use at least 1.")
        self._specs = list(specs)
        self.limit = limit
        self.cut_short = False
        self._where = f" in {data}" if isinstance(data, str | os.PathLike) else ""
        self.source: Source = source_of(data, self._specs)
        limited = getattr(self.source, "limited", None)
        if limit is not None and limited is not None:  # feeds of several samples: a limit counts samples
            self.source, limit = limited(limit), None
        known = self.source.length
        self._may_be_endless = known is None and self.limit is None
        self._stop = MAX_UNCOUNTED if self._may_be_endless else limit
        self.length = None if known is None else least(known, limit)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[dict[str, Array]]:
        """Give the checked samples with an index from ``first`` up to, but not including, ``stop``."""
        end = least(stop, self._stop)
        if end is not None and end <= first:
            return
        for index, sample in enumerate(self.source.portion(first, end), first):
            self.cut_short |= self._may_be_endless and index + 1 == MAX_UNCOUNTED
            yield checked(sample, self._specs, index)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        empty = True
        for sample in self.portion():
            empty = False
            yield sample
        if empty:
            raise DataError(f"There is no calibration sample{self._where}; give at least one.")

    @property
    def can_repeat(self) -> bool:
        """Whether the samples can be iterated over once more."""
        source = innermost(self.source)
        return not isinstance(source, OneWay) or source.can_rewind

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the number of samples is known only after iterating over them")
        return self.length


def copied(sample: Mapping[str, Array]) -> dict[str, Array]:
    """Return a sample that does not change when its source uses the arrays again."""
    return {name: np.array(values) for name, values in sample.items()}


def checked(sample: Sample, specs: Specs, index: int) -> dict[str, Array]:
    """Return the sample as arrays that fit the model's inputs, or raise an error that says what does not."""
    here = described(sample, index)
    if not isinstance(sample, Mapping):
        raise DataError(
            f"{here} is of type {type(sample).__name__}; each sample must be a dict: {{{_pairs(specs)}}}."
        )
    known = {spec.name for spec in specs}
    for name in sample:
        if name not in known:
            raise DataError(
                f"{here} has {name!r}, which is not an input of the model"
                f"{closest(str(name), known) or '.'} The model has the inputs {_names(specs)}."
            )
    for spec in specs:
        if spec.name not in sample:
            raise DataError(
                f"{here} lacks the input {spec.name!r}; the model has the inputs {_names(specs)}."
            )
    return {spec.name: _fit(sample[spec.name], spec, f"{here}, input {spec.name!r}:") for spec in specs}


def _pairs(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{spec.name!r}: array" for spec in specs)


def _names(specs: Sequence[InputSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def _fit(value: Any, spec: InputSpec, where: str) -> Array:
    array = _as_array(value, spec, where)
    if spec.dtype.kind == "O":
        if array.dtype.kind not in "OUS":
            raise DataError(f"{where} the model takes text, and the array holds {array.dtype}.")
    elif array.dtype != spec.dtype:
        advice = f"convert it: array.astype({str(spec.dtype)!r})"
        if array.dtype.kind in "ui" and spec.dtype.kind == "f":
            advice = (
                "scale it as in training (octavo.arrays): scale=255 for values of 0 … 1, scale=1 as they are"
            )
        raise DataError(f"{where} the model takes {spec.dtype}, and the array holds {array.dtype}; {advice}.")
    _check_shape(array, spec, where)
    if spec.dtype.kind in "fV" and not _all_finite(array):
        raise DataError(f"{where} the array holds NaN or infinity; remove or repair this sample.")
    return array


def _as_array(value: Any, spec: InputSpec, where: str) -> Array:
    if isinstance(value, list | tuple | bool | int | float):
        try:
            return np.asarray(value, None if spec.dtype.kind == "O" else spec.dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise DataError(f"{where} the list can't be turned into {spec.dtype}: {error}.") from error
    array = np.asarray(_as_numpy(value))
    if array.dtype.kind == "O" and spec.dtype.kind != "O":
        raise DataError(
            f"{where} an array of Python objects was given ({type(value).__name__}); give a plain numpy "
            f"array of {spec.dtype}."
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else array.copy()  # everything after this is faster that way


def _as_numpy(value: Any) -> Any:
    """Return a tensor of another framework as a numpy array."""
    for step in ("detach", "cpu", "numpy"):
        if callable(getattr(value, "numpy", None)) and callable(getattr(value, step, None)):
            value = getattr(value, step)()
    return value


def _check_shape(array: Array, spec: InputSpec, where: str) -> None:
    expected = f"[{', '.join(str(dim) if dim is not None else '?' for dim in spec.shape)}]"
    if array.ndim != len(spec.shape):
        hint = "; add the batch dimension: array[None]" if array.ndim == len(spec.shape) - 1 else ""
        raise DataError(f"{where} the model takes shape {expected}, and {list(array.shape)} was given{hint}.")
    for axis, (size, dim) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if isinstance(dim, int) and dim > 0 and size != dim:
            hint = _layout_hint(array, spec) or f"axis {axis} must be {dim}"
            raise DataError(
                f"{where} the model takes shape {expected}, and {list(array.shape)} was given: {hint}."
            )


def _layout_hint(array: Array, spec: InputSpec) -> str:
    """Return what to do about images whose channels are on the other axis; empty where that is not it."""
    axis = channel_axis(spec)
    if axis is None or array.ndim != 4:
        return ""
    other = 4 - axis  # of the axes 1 and 3
    moved = np.moveaxis(array, other, axis).shape
    if any(isinstance(dim, int) and 0 < dim != size for dim, size in zip(spec.shape, moved, strict=True)):
        return ""
    given, wanted = ("NHWC", "NCHW") if axis == 1 else ("NCHW", "NHWC")
    order = "0, 3, 1, 2" if axis == 1 else "0, 2, 3, 1"
    return (
        f"the data is {given} and the model takes {wanted}; give layout={given.lower()!r} (octavo.arrays),"
        f" or transpose it: array.transpose({order})"
    )


def _all_finite(array: Array) -> bool:
    """Return whether no value is NaN or infinite; the sum answers at once for all but the largest values."""
    if array.dtype.itemsize >= 4:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                return True
    return bool(np.all(np.isfinite(array)))
