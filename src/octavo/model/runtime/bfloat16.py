"""bfloat16 in and out of the runtime, which has no numpy type for it: by the bytes of its own values."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

Array = npt.NDArray[Any]


def value_of(ort: Any, array: Array) -> Any:
    """Return an array of any type as a value of the runtime."""
    if array.dtype == ml_dtypes.bfloat16:
        plain = np.ascontiguousarray(array).view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, onnx.TensorProto.BFLOAT16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def run(ort: Any, session: Any, names: Sequence[str], given: Mapping[str, Any]) -> list[Array]:
    """Run a session some of whose outputs are bfloat16."""
    feeds = {
        name: value_of(ort, item) if isinstance(item, np.ndarray) else item for name, item in given.items()
    }
    return [_array_of(value) for value in session.run_with_ort_values(list(names), feeds)]


def _array_of(value: Any) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    if not count:
        return np.zeros(shape, ml_dtypes.bfloat16)
    raw = ctypes.string_at(value.data_ptr(), 2 * count)
    found: Array = np.frombuffer(bytearray(raw), ml_dtypes.bfloat16).reshape(shape)
    return found
