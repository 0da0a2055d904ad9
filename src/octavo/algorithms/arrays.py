"""Where arrays are worked on: numpy, or a GPU through CuPy or PyTorch where one of them is there.

Operators, slices, ``sum(axis=…)`` and ``swapaxes`` are the same in all three; what differs is a method here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, RecipeError

Array = npt.NDArray[Any]
DEVICES = ("cpu", "gpu", "auto")


class Arrays(Protocol):
    """One library of arrays; ``block`` is how many columns a small factorization takes at once."""

    name: str
    block: int

    def put(self, values: Array) -> Any:
        """An array of numpy as one of the library, of the same type."""
        ...

    def get(self, values: Any) -> Array:
        """An array of the library as one of numpy."""
        ...

    def rounded(self, values: Any, low: float, high: float) -> Any:
        """To the nearest integer, half to even, within bounds."""
        ...

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        """One or the other, element by element."""
        ...

    def flipped(self, values: Any) -> Any:
        """The last two axes from their end to their beginning."""
        ...

    def diagonal(self, values: Any) -> Any:
        """Of the last two axes."""
        ...

    def zeros(self, like: Any) -> Any:
        """Zeros in the shape and type of another array."""
        ...

    def copied(self, values: Any) -> Any:
        """A copy whose last axis lies together."""
        ...

    def dots(self, rows: Any, vectors: Any) -> Any:
        """Each row ``[group, output, product]`` times the vector ``[group, product]`` of its group."""
        ...

    def cholesky(self, values: Any) -> Any:
        """The lower factor of each matrix."""
        ...

    def inverse(self, values: Any) -> Any:
        """Of each matrix."""
        ...


class Numpy:
    """numpy, and libraries that speak as it does."""

    name = "numpy"
    block = 64  # larger factorizations run in several threads, which is slow beside other work

    def __init__(self, library: Any = np) -> None:
        self.library = library

    def put(self, values: Array) -> Any:
        """An array of the library."""
        return self.library.asarray(values)

    def get(self, values: Any) -> Array:
        """An array of numpy."""
        return np.asarray(values)

    def rounded(self, values: Any, low: float, high: float) -> Any:
        """To the nearest integer within bounds."""
        return self.library.clip(self.library.rint(values), low, high)

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        """One or the other."""
        return self.library.where(condition, one, other)

    def flipped(self, values: Any) -> Any:
        """From the end to the beginning."""
        return values[..., ::-1, ::-1]

    def diagonal(self, values: Any) -> Any:
        """Of the last two axes."""
        return self.library.diagonal(values, axis1=-2, axis2=-1)

    def zeros(self, like: Any) -> Any:
        """Zeros like another array."""
        return self.library.zeros_like(like)

    def copied(self, values: Any) -> Any:
        """A copy in order."""
        return self.library.array(values, order="C")

    def dots(self, rows: Any, vectors: Any) -> Any:
        """Each row times the vector of its group."""
        return self.library.einsum("gok,gk->go", rows, vectors)

    def cholesky(self, values: Any) -> Any:
        """The lower factor of each matrix."""
        try:
            found = self.library.linalg.cholesky(values)
        except np.linalg.LinAlgError as error:
            raise _no_factor() from error
        return self._checked(found)

    def inverse(self, values: Any) -> Any:
        """Of each matrix."""
        return self.library.linalg.inv(values)

    def _checked(self, values: Any) -> Any:
        return values


class Cupy(Numpy):
    """CuPy on the first CUDA device."""

    name = "cupy"
    block = 512

    def __init__(self) -> None:
        library = import_module("cupy")
        if not library.cuda.runtime.getDeviceCount():
            raise ImportError("no device")
        super().__init__(library)

    def get(self, values: Any) -> Array:
        """An array of numpy."""
        found: Array = self.library.asnumpy(values)
        return found

    def _checked(self, values: Any) -> Any:
        if not bool(self.library.isfinite(values).all()):  # CuPy gives NaN where there is no factor
            raise _no_factor()
        return values


class Torch:
    """PyTorch, on a CUDA device unless told otherwise."""

    name = "torch"
    block = 512

    def __init__(self, device: str = "cuda") -> None:
        self.library = import_module("torch")
        if device == "cuda" and not self.library.cuda.is_available():
            raise ImportError("no device")
        self.device = device

    def put(self, values: Array) -> Any:
        """An array of the library."""
        return self.library.from_numpy(np.array(values)).to(self.device)

    def get(self, values: Any) -> Array:
        """An array of numpy."""
        found: Array = values.cpu().numpy()
        return found

    def rounded(self, values: Any, low: float, high: float) -> Any:
        """To the nearest integer within bounds."""
        return self.library.clamp(self.library.round(values), low, high)

    def where(self, condition: Any, one: Any, other: Any) -> Any:
        """One or the other."""
        return self.library.where(condition, one, other)

    def flipped(self, values: Any) -> Any:
        """From the end to the beginning."""
        return self.library.flip(values, (-2, -1))

    def diagonal(self, values: Any) -> Any:
        """Of the last two axes."""
        return self.library.diagonal(values, dim1=-2, dim2=-1)

    def zeros(self, like: Any) -> Any:
        """Zeros like another array."""
        return self.library.zeros_like(like)

    def copied(self, values: Any) -> Any:
        """A copy in order."""
        return values.contiguous().clone()

    def dots(self, rows: Any, vectors: Any) -> Any:
        """Each row times the vector of its group."""
        return self.library.einsum("gok,gk->go", rows, vectors)

    def cholesky(self, values: Any) -> Any:
        """The lower factor of each matrix."""
        try:
            return self.library.linalg.cholesky(values)
        except self.library.linalg.LinAlgError as error:
            raise _no_factor() from error

    def inverse(self, values: Any) -> Any:
        """Of each matrix."""
        return self.library.linalg.inv(values)


HOST = Numpy()
_LIBRARIES: tuple[Callable[[], Arrays], ...] = (Cupy, Torch)


def arrays(device: str) -> Arrays:
    """The library for a device: ``cpu``, ``gpu``, or ``auto`` for a GPU where there is one."""
    if device != "cpu":
        for library in _LIBRARIES:
            try:
                return library()
            except Exception:  # a driver that does not answer has many names
                continue
    if device == "gpu":
        raise RecipeError(
            "No GPU can be used for rounding: neither CuPy nor PyTorch finds one; install CuPy for your CUDA,"
            " or choose device=cpu."
        )
    return HOST


def _no_factor() -> DataError:
    return DataError("The inputs of a layer give no usable Gram matrix; look at the calibration data.")
