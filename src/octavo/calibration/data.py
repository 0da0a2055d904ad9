"""Calibration data: whatever the caller has, as a stream of checked ``{input name: array}`` samples.

:mod:`.readers` makes a source of samples out of paths, arrays, iterables, readers and more. Each sample is
checked here against the model's inputs before the runtime sees it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt

from octavo.calibration.readers import Given, Reader, Sample, Source, place, source_of
from octavo.calibration.readers.objects import OneWay
from octavo.calibration.readers.source import least
from octavo.errors import DataError, closest
from octavo.model.session import InputSpec

Array = npt.NDArray[Any]
Data: TypeAlias = Union[Iterable[Any], Reader, Given, Array, str, "os.PathLike[str]"]

MOST = 10_000  # samples taken of data that can't tell its length, where nobody says how many


class Feeds:
    """Samples that can be gone through again and again, where the source allows it.

    ``length`` is the number of samples, or None where only going through them would tell. Of data that can't
    tell, and may never end, ``MOST`` are taken unless a limit says otherwise; ``cut_short`` is then set.
    """

    def __init__(self, data: Data, specs: Sequence[InputSpec], *, limit: int | None = None) -> None:
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
        endless = known is None and self.limit is None
        self._stop = MOST if endless else limit
        self._watch_end = endless
        self.length = None if known is None else least(known, limit)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[dict[str, Array]]:
        """The checked samples with an index from ``first`` up to, but not including, ``stop``."""
        end = least(stop, self._stop)
        if end is not None and end <= first:
            return
        for index, sample in enumerate(self.source.portion(first, end), first):
            self.cut_short |= self._watch_end and index + 1 == MOST
            yield checked(sample, self._specs, index)

    def __iter__(self) -> Iterator[dict[str, Array]]:
        empty = True
        for sample in self.portion():
            empty = False
            yield sample
        if empty:
            raise DataError(f"There is no sample of calibration data{self._where}; give at least one.")

    @property
    def can_repeat(self) -> bool:
        """Whether there can be another pass."""
        source: Any = self.source
        while source is not None:
            if isinstance(source, OneWay):
                return source.can_rewind
            source = getattr(source, "inner", None)
        return True

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("the number of samples is known only after going through them")
        return self.length


def feeds(
    data: Data | Feeds, specs: Sequence[InputSpec], *, limit: int | None = None
) -> Iterator[dict[str, Array]]:
    """The samples of any kind of data, each checked against the model's inputs; at most ``limit`` of them."""
    if isinstance(data, Feeds):
        return itertools.islice(iter(data), limit)
    return iter(Feeds(data, specs, limit=limit))


def copied(sample: Mapping[str, Array]) -> dict[str, Array]:
    """A sample that stays as it is when whoever gave it uses its arrays again."""
    return {name: np.array(values) for name, values in sample.items()}


def checked(sample: Sample, specs: Sequence[InputSpec], index: int) -> dict[str, Array]:
    """The sample as arrays that fit the model's inputs, or an error that says what does not, and where."""
    here = place(sample, index)
    if not isinstance(sample, Mapping):
        raise DataError(
            f"{here} is a {type(sample).__name__}; each sample must be a dict of {_names(specs)}."
        )
    known = {spec.name for spec in specs}
    for name in sample:
        if name not in known:
            raise DataError(
                f"{here} has {name!r}, which is no input of the model"
                f"{closest(str(name), known) or '.'} The model has the inputs {_names(specs)}."
            )
    for spec in specs:
        if spec.name not in sample:
            raise DataError(
                f"{here} lacks the input {spec.name!r}; the model has the inputs {_names(specs)}."
            )
    return {spec.name: _fit(sample[spec.name], spec, here) for spec in specs}


def _names(specs: Sequence[InputSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def _fit(value: Any, spec: InputSpec, here: str) -> Array:
    where = f"{here}, input {spec.name!r}:"
    array = _as_array(value, spec, where)
    if spec.dtype.kind == "O":
        if array.dtype.kind not in "OUS":
            raise DataError(f"{where} the model takes text, and the array holds {array.dtype}.")
    elif array.dtype != spec.dtype:
        raise DataError(
            f"{where} the model takes {spec.dtype}, and the array holds {array.dtype}; convert it, and "
            f"scale it as in training if that is needed: array.astype({str(spec.dtype)!r})."
        )
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
    array = np.asarray(_plain(value))
    if array.dtype.kind == "O" and spec.dtype.kind != "O":
        raise DataError(
            f"{where} an array of Python objects was given ({type(value).__name__}); give a plain numpy "
            f"array of {spec.dtype}."
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.c_contiguous else array.copy()  # everything behind is faster that way


def _plain(value: Any) -> Any:
    """A tensor of another framework as a numpy array."""
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
            raise DataError(
                f"{where} the model takes shape {expected}, and {list(array.shape)} was given: axis {axis} "
                f"has to be {dim}."
            )


def _all_finite(array: Array) -> bool:
    """Whether no value is NaN or infinite; the sum answers at once for all but the largest of values."""
    if array.dtype.itemsize >= 4:
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(array.sum()):
                return True
    return bool(np.all(np.isfinite(array)))
