"""Samples in ``TensorProto`` files.

A bundle is one ``.pb`` file with a stacked set of preprocessed tensors: its first axis counts the samples, as
``[samples, channels, height, width]`` or ``[samples, batch, channels, height, width]``. The other layout is
that of ONNX's own tests: ``test_data_set_N/input_0.pb`` beside ``model.onnx``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from octavo.core.files import read_bytes
from octavo.data.readers.array_samples import Arrays, cuts, only_input
from octavo.data.source import Array, FoundIn, Sample, Specs, in_order, span
from octavo.errors import DataError, ModelError
from octavo.model.files.bounds import check_tensor

_MOST_BYTES = 2 << 30  # protobuf takes no more


def read(data: object, specs: Specs) -> TensorBundle | DataSets | None:
    """Return the samples of a ``.pb`` file, or of a folder of ``test_data_set_N``."""
    if not isinstance(data, Path):
        return None
    if data.is_dir():
        found = in_order(folder for folder in data.glob("test_data_set_*") if folder.is_dir())
        folders = tuple(found) or ((data,) if any(data.glob("input_*.pb")) else ())
        return DataSets(folders, tuple(specs)) if folders else None
    if data.suffix.lower() != ".pb":
        return None
    return TensorBundle(data, tuple(specs), _bundled(data, specs).length)


@dataclass(frozen=True, eq=False)
class TensorBundle:
    """The samples stacked in one tensor."""

    path: Path
    specs: Specs
    length: int

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index; the tensor is read anew."""
        return _bundled(self.path, self.specs).portion(first, stop)


def _bundled(path: Path, specs: Specs) -> Arrays:
    name, array = read_tensor(path)
    if name not in {spec.name for spec in specs}:
        name = only_input(specs, str(path))
    return Arrays({name: array}, cuts({name: array.shape}, specs, str(path)), str(path))


@dataclass(frozen=True, eq=False)
class DataSets:
    """A sample for each folder of ``input_0.pb``, ``input_1.pb`` …"""

    folders: tuple[Path, ...]
    specs: Specs

    @property
    def length(self) -> int:
        """Return the number of samples."""
        return len(self.folders)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index."""
        for index in span(self.length, first, stop):
            yield _data_set(self.folders[index], self.specs)


def _data_set(folder: Path, specs: Specs) -> Sample:
    """Read the tensors of a folder, in the order of the model's inputs or by name."""
    found: dict[str, Array] = {}
    for path in in_order(folder.glob("input_*.pb")):
        name, array = read_tensor(path)
        number = path.stem.removeprefix("input_")
        if name not in {spec.name for spec in specs}:
            if not number.isdecimal() or int(number) >= len(specs):
                raise DataError(
                    f"{path} is tensor {name!r}, and the model has the inputs "
                    f"{', '.join(repr(spec.name) for spec in specs)}."
                )
            name = specs[int(number)].name
        found[name] = array
    return FoundIn(found, str(folder))


def read_tensor(path: Path) -> tuple[str, Array]:
    """Read the name and the values of a serialized tensor; one that points to another file is refused."""
    try:
        proto = onnx.TensorProto.FromString(read_bytes(path, _MOST_BYTES))
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            raise DataError(f"{path} keeps its values in another file; save the tensor with its values.")
        if proto.data_type == onnx.TensorProto.UNDEFINED:
            raise DataError(f"{path} can't be read as a tensor: it has no element type.")
        check_tensor(proto, str(path))
        return proto.name, onnx.numpy_helper.to_array(proto)
    except ModelError as error:
        raise DataError(str(error)) from error
    except (DecodeError, ValueError, TypeError, OSError, KeyError, OverflowError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} can't be read as a tensor: {reason}.") from error
