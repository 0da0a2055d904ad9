"""Samples in arrays.

The first axis counts samples where there are as many axes as the model's input has: each is fed as a batch
of one, or of the model's own size where that is fixed. An array with one axis more holds one whole feed per
index, and one with an axis less is a single sample without its batch axis. Of several files, each is one
whole feed where the first axis is not a batch that all inputs share: a signal, a sequence, a set of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from octavo.data.source import Array, FoundIn, Sample, Specs, span
from octavo.errors import DataError, closest
from octavo.model.runtime.session import InputSpec

Shape = tuple[int, ...]

_SEQUENCES = ("seq", "time", "len", "frame", "token", "point", "node", "edge")  # parts of the names of axes


@dataclass(frozen=True)
class Cut:
    """How samples are cut out of one array; ``count`` is None for a scalar that serves all of them."""

    kind: Literal["feeds", "rows", "unbatched", "shared", "whole"]
    count: int | None
    rows: int = 1

    def take(self, array: Array, index: int) -> Array:
        """Return the sample with this index."""
        match self.kind:
            case "feeds":
                return np.asarray(array[index])
            case "rows":
                return array[index * self.rows : (index + 1) * self.rows]
            case "unbatched":
                return array[None]
            case "shared" | "whole":
                return array


@dataclass(frozen=True)
class Cuts:
    """How samples are cut out of the arrays of one file."""

    length: int
    by_name: Mapping[str, Cut]

    def take(self, arrays: Mapping[str, Array], index: int) -> dict[str, Array]:
        """Return the sample with this index."""
        return {name: cut.take(arrays[name], index) for name, cut in self.by_name.items()}


def cuts(shapes: Mapping[str, Shape], specs: Specs, where: str, *, whole: bool = False) -> Cuts:
    """Find out how arrays of these shapes hold samples.

    With ``whole``, arrays that fit the inputs as they are, and are not batches, make one feed.
    """
    refuse_unknown(shapes, specs, where)
    for spec in specs:
        if spec.name not in shapes:
            held = f"it holds {', '.join(map(repr, shapes))}" if shapes else "it holds no array"
            raise DataError(f"{where} lacks the input {spec.name!r}: {held}; save one array for each input.")
    if whole and all(_fits(shapes[spec.name], spec) for spec in specs) and not is_batch(shapes, specs):
        return Cuts(1, {spec.name: Cut("whole", 1) for spec in specs})
    found = {spec.name: _cut(shapes[spec.name], spec, where) for spec in specs}
    counts = {name: cut.count for name, cut in found.items() if cut.count is not None}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise DataError(
            f"{where} holds different numbers of samples: {listed}; save as many of each, in the same order."
        )
    return Cuts(next(iter(counts.values()), 1), found)


def refuse_unknown(names: Mapping[str, object], specs: Specs, where: str) -> None:
    """Raise where an array has a name that is not an input."""
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            saved = ", ".join(f"{one}=…" for one in known or ["name"])
            raise DataError(
                f"{where} holds an array {name!r}, which is not an input of the model"
                f"{closest(name, known) or '.'} Save the inputs alone: np.savez(path, {saved})."
            )


def only_input(specs: Specs, where: str) -> str:
    """Return the name of the model's one input, for an array that has no name."""
    if len(specs) != 1:
        raise DataError(
            f"{where} holds one array, and the model has {len(specs)} inputs; save them by name in a .npz "
            f"file: np.savez(path, {', '.join(f'{spec.name}=…' for spec in specs)})."
        )
    return specs[0].name


def _fits(shape: Shape, spec: InputSpec) -> bool:
    return len(shape) == len(spec.shape) and all(
        not isinstance(dim, int) or dim <= 0 or dim == size
        for dim, size in zip(spec.shape, shape, strict=True)
    )


def is_batch(shapes: Mapping[str, Shape], specs: Specs) -> bool:
    """Return whether the first axes of all arrays count the same samples, of a batch that is left open."""
    return len({shapes[spec.name][:1] for spec in specs}) == 1 and all(
        len(spec.shape) > 1 and not isinstance(spec.shape[0], int) and not _is_sequence(spec.shape[0])
        for spec in specs
    )


def _is_sequence(dim: str | None) -> bool:
    """Return whether the name of an axis says that it is not a batch."""
    return dim is not None and any(part in dim.lower() for part in _SEQUENCES)


def _shown(shape: Iterable[object]) -> str:
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _reshaping(shape: Shape, spec: InputSpec) -> str:
    """Return how an array that holds as many values for each sample gets the shape of the input."""
    dims = [dim for dim in spec.shape[1:] if isinstance(dim, int) and dim > 0]
    if len(dims) != len(spec.shape) - 1 or math.prod(dims) != math.prod(shape[1:]):
        return f"; save the samples along its first axis: {_shown(('samples', *spec.shape[1:]))}"
    return f"; reshape it: array.reshape(-1, {', '.join(str(dim) for dim in dims)})"


def _cut(shape: Shape, spec: InputSpec, where: str) -> Cut:
    rank = len(spec.shape)
    if len(shape) == rank + 1:
        return Cut("feeds", shape[0])
    if rank == 0 and not shape:
        return Cut("shared", None)
    if len(shape) == rank - 1:
        return Cut("unbatched", 1)
    if len(shape) != rank:
        raise DataError(
            f"{where}: the input {spec.name!r} has {rank} dimensions {_shown(spec.shape)}, and the array has "
            f"shape {list(shape)}{_reshaping(shape, spec)}."
        )
    batch = spec.shape[0]
    size = batch if isinstance(batch, int) and batch > 0 else 1
    if shape[0] % size:
        raise DataError(
            f"{where}: the model takes {spec.name!r} in batches of {size}, and {shape[0]} samples can't be "
            "divided by that; add or remove some."
        )
    return Cut("rows", shape[0] // size, size)


@dataclass(frozen=True, eq=False)
class Arrays:
    """The samples of arrays in memory."""

    arrays: Mapping[str, Array]
    cuts: Cuts
    where: str = ""

    @property
    def length(self) -> int:
        """Return the number of samples."""
        return self.cuts.length

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index."""
        for index in span(self.length, first, stop):
            yield FoundIn(self.cuts.take(self.arrays, index), self.where)


def read(data: object, specs: Specs) -> Arrays | None:
    """Return the samples of one array, for a model of one input."""
    if not isinstance(data, np.ndarray):
        return None
    name = only_input(specs, "The array")
    return Arrays({name: data}, cuts({name: data.shape}, specs, "The array"))
