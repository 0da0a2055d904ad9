"""Samples in arrays and archives of arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.readers.numpy_files import archive_arrays
from octavo.errors import DataError
from octavo.model.session import InputSpec

Array = npt.NDArray[Any]
_LABEL_KEYS = ("labels", "label", "y", "targets")
_IMAGE_KEYS = ("images", "image", "pixels", "x", "data")


def archive(path: Path, specs: Sequence[InputSpec]) -> tuple[dict[str, Array], Array | None]:
    """The arrays of an ``.npz`` file, and its labels where it has some."""
    arrays = archive_arrays(path)
    known = {spec.name for spec in specs}
    key = next((key for key in _LABEL_KEYS if key in arrays and key not in known), None)
    return arrays, arrays.pop(key) if key is not None else None


def rows(
    arrays: Mapping[str, Array], specs: Sequence[InputSpec], scale: float | None, where: str
) -> Sequence[Any]:
    """Arrays whose first axis counts the samples, as feeds of one sample each."""
    inputs = _by_input(arrays, specs, where)
    counts = {name: len(array) for name, array in inputs.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{where} holds different numbers of samples: {counts}.")
    return _Rows(inputs, {spec.name: spec for spec in specs}, scale, where)


def _by_input(arrays: Mapping[str, Array], specs: Sequence[InputSpec], where: str) -> dict[str, Array]:
    names = [spec.name for spec in specs]
    if all(name in arrays for name in names):
        return {name: arrays[name] for name in names}
    if len(names) == 1:
        key = next((key for key in _IMAGE_KEYS if key in arrays), None)
        if key is None and len(arrays) == 1:
            key = next(iter(arrays))
        if key is not None:
            return {names[0]: arrays[key]}
    raise DataError(
        f"{where} holds {', '.join(arrays) or 'nothing'}, and the model has the inputs {', '.join(names)}; "
        "save an array for each input, by its name."
    )


class _Rows(Sequence[Any]):
    """Arrays as feeds of one sample each, cut when asked for."""

    def __init__(
        self, arrays: Mapping[str, Array], specs: Mapping[str, InputSpec], scale: float | None, where: str
    ) -> None:
        self._arrays, self._specs, self._scale, self._where = arrays, specs, scale, where

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return {name: self._cut(array, self._specs[name], index) for name, array in self._arrays.items()}

    def _cut(self, array: Array, spec: InputSpec, index: int) -> Array:
        row = array[index : index + 1]
        if row.ndim == len(spec.shape) - 1:
            row = row[:, None]  # pictures of one channel, stored without it
        if row.dtype == spec.dtype:
            return row if self._scale is None else (row / spec.dtype.type(self._scale)).astype(spec.dtype)
        if row.dtype.kind in "ui" and spec.dtype.kind == "f":
            if self._scale is None:
                raise DataError(
                    f"{self._where} holds {row.dtype} for the input {spec.name!r}, which takes {spec.dtype}; "
                    "say what the values are divided by: scale=255, or scale=1."
                )
            return np.asarray(row.astype(spec.dtype) / spec.dtype.type(self._scale))
        return row.astype(spec.dtype) if row.dtype.kind == spec.dtype.kind else row
