"""Calibration data: whatever the caller has, as a stream of checked ``{input name: array}`` samples.

Accepted are an iterable of such dicts, a reader with ``get_next()``, an array for a model of one input, and
paths: a ``.npy`` or ``.npz`` file, a folder of them, or ``test_data_set_*/input_*.pb`` (:mod:`.files`).
Each sample is checked against the model's inputs before the runtime sees it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Union, runtime_checkable

import numpy as np
import numpy.typing as npt

from octavo.calibration.files import Sample, Source, array_source, path_source
from octavo.errors import DataError, closest
from octavo.model.session import InputSpec

Array = npt.NDArray[Any]


@runtime_checkable
class Reader(Protocol):
    """A source of samples that is asked for one after the other; None ends it."""

    def get_next(self) -> Mapping[str, Any] | None:
        """The next sample."""
        ...


Data: TypeAlias = Union[Iterable[Mapping[str, Any]], Reader, Array, str, "os.PathLike[str]"]


class Feeds:
    """Samples that can be gone through again and again, where the source allows it.

    ``length`` is the number of samples, or None where only going through them would tell.
    """

    def __init__(self, data: Data, specs: Sequence[InputSpec], *, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise DataError(f"A limit of {limit} samples leaves nothing to calibrate with; use at least 1.")
        self._specs = list(specs)
        self._limit = limit
        self._passes = 0
        self._rewind: Callable[[], object] | None = None
        self._where = f" in {data}" if isinstance(data, str | os.PathLike) else ""
        source = self._find(data)
        self._start = source.start
        self.length = _least(source.length, limit)

    def _find(self, data: Any) -> Source:
        if isinstance(data, str | os.PathLike):
            return path_source(Path(data), self._specs)
        if isinstance(data, np.ndarray):
            return array_source(data, self._specs, "The array")
        if isinstance(data, Reader):
            self._rewind = getattr(data, "rewind", None) or _only_once
            return Source(_length(data), lambda: iter(data.get_next, None))
        if isinstance(data, Mapping):
            raise DataError(
                "The calibration data is a dict, which is one sample; put it into a list: [sample, …]."
            )
        if not isinstance(data, Iterable):
            raise DataError(
                f"Calibration data can't be a {type(data).__name__}; give a list of {{input name: array}}, a "
                "reader with get_next(), or the path of .npz files."
            )
        if isinstance(data, Iterator):
            self._rewind = _only_once
        return Source(_length(data), lambda: iter(data))

    def __iter__(self) -> Iterator[dict[str, Array]]:
        if self._passes and self._rewind is not None:
            self._rewind()
        self._passes += 1
        index = -1
        for index, sample in enumerate(itertools.islice(self._start(), self._limit)):
            yield checked(sample, self._specs, index)
        if index < 0:
            raise DataError(f"There is no sample of calibration data{self._where}; give at least one.")

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


def _length(data: object) -> int | None:
    if not isinstance(data, Sized):
        return None
    try:
        return len(data)
    except TypeError:  # a wrapper around something without a length
        return None


def _least(length: int | None, limit: int | None) -> int | None:
    return length if limit is None or length is None else min(limit, length)


def _only_once() -> None:
    raise DataError(
        "The calibration data can be gone through only once, and is needed a second time; give a list, or a "
        "reader with rewind()."
    )


def checked(sample: Sample, specs: Sequence[InputSpec], index: int) -> dict[str, Array]:
    """The sample as arrays that fit the model's inputs, or an error that says what does not, and where."""
    if not isinstance(sample, Mapping):
        raise DataError(
            f"Sample {index} of the calibration data is a {type(sample).__name__}; each sample must be a "
            f"dict of {_names(specs)}."
        )
    known = {spec.name for spec in specs}
    for name in sample:
        if name not in known:
            raise DataError(
                f"Sample {index} of the calibration data has {name!r}, which is no input of the model"
                f"{closest(str(name), known) or '.'} The model has the inputs {_names(specs)}."
            )
    for spec in specs:
        if spec.name not in sample:
            raise DataError(
                f"Sample {index} of the calibration data lacks the input {spec.name!r}; the model has the "
                f"inputs {_names(specs)}."
            )
    return {spec.name: _fit(sample[spec.name], spec, index) for spec in specs}


def _names(specs: Sequence[InputSpec]) -> str:
    return ", ".join(repr(spec.name) for spec in specs)


def _fit(value: Any, spec: InputSpec, index: int) -> Array:
    where = f"Sample {index} of the calibration data, input {spec.name!r}:"
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
    array = np.asarray(value)
    if array.dtype.kind == "O" and spec.dtype.kind != "O":
        raise DataError(
            f"{where} an array of Python objects was given ({type(value).__name__}); give a plain numpy "
            f"array of {spec.dtype}."
        )
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


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
