"""Inputs made from a signature alone: what a model is likely to accept when nothing else is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import DataError, ModelError

if TYPE_CHECKING:
    from octavo.model.runtime.session import InputSpec

_SIZES = (16, 64, 224, 512)  # what to try for an open dimension after the first guess

_PAST = ("past", "cache")
_SEQUENCE, _SIDE, _SIGNAL = 8, 64, 512  # tokens, pixels of an image's side, values of a signal
_SAMPLE_RATE = 16000  # Hz, of most speech models
_MAX_ELEMENTS = 1 << 26  # of an input that is made up
_PIECE = 1 << 20  # elements that are drawn at a time


def specs_of(model: ir.Model) -> list[InputSpec]:
    """Return the inputs of a model as a session names them: old models list their weights too."""
    from octavo.model.runtime.session import InputSpec

    found = []
    for value in model.graph.inputs:
        if value.is_initializer():
            continue
        kind = value.dtype
        if kind == ir.DataType.UNDEFINED:
            raise ModelError(
                f"The input {value.name!r} does not say of which type its elements are; export the model "
                "again."
            )
        dtype = np.dtype(np.object_) if kind in (None, ir.DataType.STRING) else np.dtype(kind.numpy())
        dims = tuple(d if isinstance(d, int) else d.value for d in value.shape or ())
        found.append(InputSpec(value.name or "", dtype, dims))
    return found


def guesses(specs: Sequence[InputSpec], dims: Mapping[str, int]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield inputs that a model may accept; where dimensions are open, larger and larger ones."""
    is_open = any(not isinstance(dim, int) or dim < 0 for spec in specs for dim in spec.shape)
    for size in (None, *_SIZES) if is_open else (None,):
        yield sample_inputs(specs, dims=dims, size=size)


def sample_inputs(
    specs: Sequence[InputSpec],
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    size: int | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return inputs that fit a signature: small sizes, ids of 0 and 1, masks of ones, floats near zero.

    A symbol has the same size wherever it appears: that of ``dims``, else a guess, else ``size``.
    """
    rng = np.random.default_rng(seed)
    sizes = dict(dims or {})
    try:
        return {spec.name: _fill(spec, _shape(spec, sizes, size), rng) for spec in specs}
    except MemoryError as error:
        raise DataError(
            f"There is not enough memory for random inputs of the model's sizes ({error}); give "
            "samples of your "
            "own, or name smaller sizes."
        ) from error


def _shape(spec: InputSpec, sizes: dict[str, int], size: int | None) -> tuple[int, ...]:
    shape: list[int] = []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int) and dim >= 0:  # the runtime takes no other size, not even for 0
            shape.append(dim)
        elif isinstance(dim, str) and dim:
            shape.append(sizes.setdefault(dim, _guess(spec, dim, axis, size)))
        else:
            shape.append(_guess(spec, "", axis, size))
    if math.prod(shape) > _MAX_ELEMENTS:
        raise DataError(
            f"The input {spec.name[:200]!r} has the shape {shape[:8]}, too large for random samples; give "
            "samples of your own, or correct the model's input."
        )
    return tuple(shape)


def _is_image(spec: InputSpec) -> bool:
    """Four dimensions of floats or bytes, with one to four channels in second or last place."""
    if len(spec.shape) != 4 or spec.dtype.kind not in "fVu":
        return False
    channels = (spec.shape[1], spec.shape[3])
    return any(isinstance(count, int) and 1 <= count <= 4 for count in channels)


def _is_state(spec: InputSpec) -> bool:
    """Whether a value is a recurrent state: ``[layers, batch, width]`` with only the batch open."""
    match spec.shape:
        case (int() as layers, str() | None, int()):
            return layers <= 8
    return False


def _is_cache(spec: InputSpec) -> bool:
    """Whether a value holds keys or values of earlier tokens, and no encoder's states."""
    name = spec.name.lower()
    return "past" in name and "encoder" not in name and len(spec.shape) > 2


def _guess(spec: InputSpec, symbol: str, axis: int, size: int | None) -> int:
    """Batch one, no past, small images, short sequences, and signals long enough for a window."""
    name = symbol.lower()
    if any(part in name for part in _PAST) and "+" not in name:
        return 0 if "len" in name or "seq" in name or (axis and "past" in name) else 1
    if axis == 0 or "batch" in name or _is_state(spec):
        return 1
    if _is_cache(spec) and "encoder" not in name:
        return 0
    if size is not None:
        return size
    if _is_image(spec):
        return _SIDE
    if len(spec.shape) == 2 and spec.dtype.kind == "f":
        return _SIGNAL
    return _SEQUENCE


def _fill(spec: InputSpec, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    """Ones for masks and flags, places for positions, ids of 0 and 1, floats near zero."""
    match spec.dtype.kind:
        case "b":
            return np.ones(shape, spec.dtype)
        case "O":
            return np.full(shape, "a", dtype=np.object_)
        case "i" | "u":
            name = spec.name.lower()
            if "mask" in name:
                return np.ones(shape, spec.dtype)
            if "position" in name and shape:
                return np.broadcast_to(np.arange(shape[-1], dtype=spec.dtype), shape).copy()
            if name == "sr" or "rate" in name:
                return np.full(shape, _SAMPLE_RATE, spec.dtype)
            if not shape:
                return np.array(1, spec.dtype)
            return _in_pieces(shape, spec.dtype, lambda count: rng.integers(0, 2, count))
    return _in_pieces(shape, spec.dtype, lambda count: 0.5 * rng.standard_normal(count))


def _in_pieces(
    shape: tuple[int, ...], dtype: np.dtype[Any], draw: Callable[[int], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Numbers drawn one after the other, with no second array of the whole size on the way."""
    made = np.empty(math.prod(shape), dtype)
    for first in range(0, made.size, _PIECE):
        part = made[first : first + _PIECE]
        part[:] = draw(part.size).astype(dtype)
    return made.reshape(shape)
