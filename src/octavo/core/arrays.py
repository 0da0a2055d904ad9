"""The array library that heavy linear algebra works with: numpy, or CuPy or PyTorch where a GPU can be used.

Operators, slices, ``sum(axis=…)`` and ``swapaxes`` are the same in all three; what differs is a method here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, RecipeError, closest

Array = npt.NDArray[Any]
DEVICES = ("cpu", "gpu", "auto")


class Arrays:
    """numpy, and the methods that other libraries define in their own way."""

    name = "numpy"
    block = 64  # columns of one factorization; larger ones start threads, which slow down other work

    def __init__(self, library: Any = np) -> None:
        self.library = library

    def put(self, values: Array) -> Any:
        """Return an array of numpy as one of the library, of the same type."""
        return self.library.asarray(values)

    def get(self, values: Any) -> Array:
        """Return an array of the library as one of numpy."""
        return np.asarray(values)

    def rounded(self, values: Any, low: float, high: float) -> Any:
        """Round to the nearest integer, half to even, within bounds."""
        return self.library.clip(self.library.rint(values), low, high)

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        """Choose one or the other, element by element."""
        return self.library.where(condition, one, other)

    def flipped(self, values: Any) -> Any:
        """Reverse the last two axes."""
        return values[..., ::-1, ::-1]

    def diagonal(self, values: Any) -> Any:
        """Return the diagonal of the last two axes."""
        return self.library.diagonal(values, axis1=-2, axis2=-1)

    def zeros(self, like: Any) -> Any:
        """Return zeros in the shape and type of another array."""
        return self.library.zeros_like(like)

    def copied(self, values: Any) -> Any:
        """Return a copy whose last axis is contiguous."""
        return self.library.array(values, order="C")

    def dots(self, rows: Any, vectors: Any) -> Any:
        """Multiply rows ``[group, output, product]`` with the vector ``[group, product]`` of their group."""
        return self.library.einsum("gok,gk->go", rows, vectors)

    def cholesky(self, values: Any) -> Any:
        """Return the lower Cholesky factor of each matrix."""
        try:
            found = self.library.linalg.cholesky(values)
        except self._not_positive as error:
            raise _no_factor() from error
        return self._checked(found)

    def inverse(self, values: Any) -> Any:
        """Return the inverse of each matrix."""
        try:
            found = self.library.linalg.inv(values)
        except self._not_positive as error:
            raise _no_factor() from error
        return self._checked(found)

    @property
    def _not_positive(self) -> type[Exception]:
        return np.linalg.LinAlgError

    def _checked(self, values: Any) -> Any:
        return values


class Cupy(Arrays):
    """CuPy on the first CUDA device."""

    name = "cupy"
    block = 512

    def __init__(self) -> None:
        library = import_module("cupy")
        if not library.cuda.runtime.getDeviceCount():
            raise ImportError("no device")
        super().__init__(library)

    def get(self, values: Any) -> Array:
        """Return an array of numpy."""
        found: Array = self.library.asnumpy(values)
        return found

    def _checked(self, values: Any) -> Any:
        if not bool(self.library.isfinite(values).all()):  # CuPy gives NaN where there is no factor
            raise _no_factor()
        return values


class Torch(Arrays):
    """PyTorch, on a CUDA device unless another is given."""

    name = "torch"
    block = 512

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(import_module("torch"))
        if device == "cuda" and not self.library.cuda.is_available():
            raise ImportError("no device")
        self.device = device

    def put(self, values: Array) -> Any:
        """Return a tensor on the device."""
        return self.library.from_numpy(np.array(values)).to(self.device)

    def get(self, values: Any) -> Array:
        """Return an array of numpy."""
        found: Array = values.cpu().numpy()
        return found

    def rounded(self, values: Any, low: float, high: float) -> Any:
        """Round to the nearest integer within bounds."""
        return self.library.clamp(self.library.round(values), low, high)

    def flipped(self, values: Any) -> Any:
        """Reverse the last two axes."""
        return self.library.flip(values, (-2, -1))

    def diagonal(self, values: Any) -> Any:
        """Return the diagonal of the last two axes."""
        return self.library.diagonal(values, dim1=-2, dim2=-1)

    def copied(self, values: Any) -> Any:
        """Return a contiguous copy."""
        return values.contiguous().clone()

    @property
    def _not_positive(self) -> type[Exception]:
        found: type[Exception] = self.library.linalg.LinAlgError
        return found


HOST = Arrays()
_LIBRARIES: tuple[Callable[[], Arrays], ...] = (Cupy, Torch)


def arrays(device: str) -> Arrays:
    """Return the library for a device: ``cpu``, ``gpu``, or ``auto`` for a GPU where there is one."""
    if device != "cpu":
        for library in _LIBRARIES:
            try:
                return library()
            except Exception:  # a driver that fails raises errors of many types
                continue
    if device == "gpu":
        raise RecipeError(
            "No GPU can be used for rounding: neither CuPy nor PyTorch finds one; install CuPy for your CUDA,"
            " or choose device=cpu."
        )
    return HOST


def checked_device(owner: str, device: str) -> None:
    """Raise where the option of a step or an algorithm names no device."""
    if device not in DEVICES:
        raise RecipeError(
            f"{owner}:device={device} is not a device{closest(device, DEVICES) or '.'}"
            f" Known: {', '.join(DEVICES)}."
        )


def _no_factor() -> DataError:
    return DataError("The inputs of a layer give no usable Gram matrix; check the calibration data.")
