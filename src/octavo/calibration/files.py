"""Samples in files: ``.npy``, ``.npz``, folders of them, and the ``test_data_set_*`` layout of ONNX.

In one file the first axis counts samples where there are as many axes as the model's input has: each is fed
as a batch of one, or of the model's own size where that is fixed. An array with one axis more holds one whole
feed per index, and one with an axis less is a single sample without its batch axis.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from octavo.errors import DataError, closest
from octavo.model.session import InputSpec

Array = npt.NDArray[Any]
Sample: TypeAlias = Mapping[str, Any]
Specs: TypeAlias = Sequence[InputSpec]


@dataclass(frozen=True)
class Source:
    """How many samples there are, where that is known, and how to start going through them."""

    length: int | None
    start: Callable[[], Iterator[Sample]]


def path_source(path: Path, specs: Specs) -> Source:
    """The samples of a file or folder."""
    if path.is_dir():
        return _folder(path, specs)
    if not path.exists():
        raise DataError(f"There is no calibration data at {path}; give an existing file or folder.")
    if path.suffix not in (".npy", ".npz"):
        raise DataError(f"{path} is no calibration data; give a .npy or .npz file, or a folder of them.")
    return _split(_load(path, specs), specs, str(path))


def array_source(array: Array, specs: Specs, where: str) -> Source:
    """The samples of one array, for a model of one input."""
    return _split({_only_input(specs, where): array}, specs, where)


def _folder(path: Path, specs: Specs) -> Source:
    sets = sorted((p for p in path.glob("test_data_set_*") if p.is_dir()), key=_natural)
    if not sets and any(path.glob("input_*.pb")):
        sets = [path]
    if sets:
        return Source(len(sets), lambda: (_data_set(folder, specs) for folder in sets))
    found = sorted((p for p in path.iterdir() if p.suffix in (".npy", ".npz") and p.is_file()), key=_natural)
    if not found:
        raise DataError(
            f"The folder {path} holds no .npz or .npy file and no test_data_set_0/input_0.pb; put the "
            "calibration samples there."
        )
    return Source(None, lambda: (sample for file in found for sample in _file(file, specs)))


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort ``s10`` after ``s9``."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path.name)]


def _file(path: Path, specs: Specs) -> Iterator[Sample]:
    """A file of a folder: one feed where its arrays fit as they are, else split as a single file is."""
    arrays = _load(path, specs)
    by_name = {spec.name: spec for spec in specs}
    if all(_fits(array, by_name[name]) for name, array in arrays.items()):
        return iter([arrays])
    return _split(arrays, specs, str(path)).start()


def _fits(array: Array, spec: InputSpec) -> bool:
    return array.ndim == len(spec.shape) and all(
        not isinstance(dim, int) or dim <= 0 or dim == size
        for dim, size in zip(spec.shape, array.shape, strict=True)
    )


def _load(path: Path, specs: Specs) -> dict[str, Array]:
    """The arrays of a file by input name; a ``.npy`` file is mapped, not read."""
    try:
        if path.suffix == ".npy":
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
            return {_only_input(specs, str(path)): loaded}
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path} can't be read as numpy data: {error}. Python objects are refused; save plain arrays."
        ) from error
    known = [spec.name for spec in specs]
    for name in arrays:
        if name not in known:
            raise DataError(
                f"{path} holds an array {name!r}, which is no input of the model"
                f"{closest(name, known) or '.'} Save it as np.savez(path, {known[0]}=…)."
            )
    return arrays


def _only_input(specs: Specs, where: str) -> str:
    if len(specs) != 1:
        raise DataError(
            f"{where} holds one array, and the model has {len(specs)} inputs; save them by name in a .npz "
            f"file: np.savez(path, {', '.join(f'{spec.name}=…' for spec in specs)})."
        )
    return specs[0].name


def _split(arrays: Mapping[str, Array], specs: Specs, where: str) -> Source:
    """The samples that lie in arrays of one file."""
    cuts: dict[str, tuple[int | None, Callable[[int], Array]]] = {}
    for spec in specs:
        if spec.name not in arrays:
            raise DataError(f"{where} lacks the input {spec.name!r}.")
        cuts[spec.name] = _cut(arrays[spec.name], spec, where)
    counts = {name: count for name, (count, _) in cuts.items() if count is not None}
    if len(set(counts.values())) > 1:
        raise DataError(f"{where} holds different numbers of samples for its inputs: {counts}.")
    length = next(iter(counts.values()), 1)

    def start() -> Iterator[Sample]:
        for index in range(length):
            yield {name: take(index) for name, (_, take) in cuts.items()}

    return Source(length, start)


def _cut(array: Array, spec: InputSpec, where: str) -> tuple[int | None, Callable[[int], Array]]:
    """How many samples an array holds (None: it serves all of them), and how to take one."""
    rank = len(spec.shape)
    if array.ndim == rank + 1:
        return len(array), partial(_whole, array)
    if rank == 0 and array.ndim == 0:
        return None, lambda index: array
    if array.ndim == rank - 1:
        return 1, lambda index: array[None]
    if array.ndim != rank:
        raise DataError(
            f"{where}: the input {spec.name!r} has {rank} dimensions {list(spec.shape)}, and the array has "
            f"shape {list(array.shape)}."
        )
    batch = spec.shape[0]
    size = batch if isinstance(batch, int) and batch > 0 else 1
    if len(array) % size:
        raise DataError(
            f"{where}: the model takes {spec.name!r} in batches of {size}, and {len(array)} samples can't be "
            "divided by that; add or remove some."
        )
    return len(array) // size, partial(_piece, array, size)


def _whole(array: Array, index: int) -> Array:
    return np.asarray(array[index])


def _piece(array: Array, size: int, index: int) -> Array:
    return array[index * size : (index + 1) * size]


def _data_set(folder: Path, specs: Specs) -> Sample:
    """One ``test_data_set_N`` folder: ``input_0.pb`` … in the order of the model's inputs, or by name."""
    found: dict[str, Array] = {}
    for path in sorted(folder.glob("input_*.pb"), key=_natural):
        try:
            proto = onnx.TensorProto.FromString(path.read_bytes())
            array = onnx.numpy_helper.to_array(proto)
        except (DecodeError, ValueError, TypeError, OSError) as error:
            raise DataError(f"{path} can't be read as a tensor: {error}.") from error
        number = path.stem.removeprefix("input_")
        name = proto.name
        if name not in {spec.name for spec in specs}:
            if not number.isdigit() or int(number) >= len(specs):
                raise DataError(
                    f"{path} is tensor {name!r}, and the model has the inputs "
                    f"{', '.join(repr(spec.name) for spec in specs)}."
                )
            name = specs[int(number)].name
        found[name] = array
    return found
