"""External weights: which file a model may name, and how a model names one.

A location is accepted if it is relative, has no ``..``, and leads, links resolved, to a regular file below
the model's folder that nothing else links to; a range of bytes, if it lies in that file and is as long as the
tensor. All of it is checked before a byte is read.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import stat
import weakref
from collections.abc import Mapping
from hashlib import sha1
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph.tensors import PlainTensor, byte_size

# ---- Weights that stay in their file: a tensor that is a range of bytes, mapped into memory when it is read
#
# A :class:`DataFile` is mapped while somebody holds an array of it and unmapped afterwards, so that a model
# of any number of weights holds no open file and no memory between reads. A file that changes under a
# loaded model is noticed (size, inode and time of change) rather than read wrongly.

Bytes = npt.NDArray[np.uint8]

_CHUNK = 16 << 20  # bytes that are written at a time
_KEEP_MOST = 1 << 20  # bytes; mapping so small a file for each read costs more than keeping its content


class DataFile:
    """A file of weights, opened only while it is read; a small one may be kept in memory."""

    def __init__(self, path: Path, *, keep: bool = False) -> None:
        self.path = path
        self._stamp = self._now()
        self._map: weakref.ref[mmap.mmap] | None = None
        self._keeps = keep and self.size <= _KEEP_MOST
        self._content: Bytes | None = None

    def _now(self) -> tuple[int, int, int, int]:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ModelError(f"The weights file {self.path} can't be read: {error.strerror}.") from error
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns

    @property
    def size(self) -> int:
        """Return the file's size in bytes."""
        return self._stamp[2]

    def view(self) -> Bytes:
        """Return the whole file as a read-only array that the file itself backs.

        A file that was cut short is refused before its missing pages are touched: that would end the process.
        """
        if self._content is not None:
            return self._content
        if self._now() != self._stamp:
            raise ModelError(
                f"The file {self.path} changed after the model was loaded from it; load the model again."
            )
        mapped = self._map() if self._map is not None else None
        if mapped is None:
            if self.size == 0:
                return np.empty(0, np.uint8)
            if self._keeps:
                self._content = np.frombuffer(self.path.read_bytes(), np.uint8)
                return self._content
            with self.path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._map = weakref.ref(mapped)
        return np.frombuffer(mapped, np.uint8)


class MappedTensor(PlainTensor):
    """A tensor whose content lies at ``offset`` of a file, or of a ``bytes`` object in memory."""

    def __init__(
        self,
        source: DataFile | Bytes,
        offset: int,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        name: str | None = None,
    ) -> None:
        super().__init__(dtype, ir.Shape(shape), name)
        self.raw: DataFile | Bytes = source
        self.offset = offset

    @property
    def path(self) -> Path | None:
        """Return the file that the content lies in, or None where it lies in memory."""
        return self.raw.path if isinstance(self.raw, DataFile) else None

    def stored(self) -> Bytes:
        """Return the bytes as they lie in the file."""
        whole = self.raw.view() if isinstance(self.raw, DataFile) else self.raw
        return whole[self.offset : self.offset + self.nbytes]

    def numpy(self) -> npt.NDArray[Any]:
        """Return a read-only array; elements of less than a byte are unpacked into a new one."""
        if self.dtype.bitwidth < 8:
            packed = ir.PackedTensor(self.stored(), self.dtype, shape=self.shape)
            return np.asarray(packed.numpy())
        return self.stored().view(self.dtype.numpy()).reshape(self.shape.numpy())

    def tobytes(self) -> bytes:
        """Return the content as little-endian bytes, elements of less than a byte packed."""
        return self.stored().tobytes()

    def tofile(self, file: BinaryIO) -> None:
        """Write the content in pieces, so that it never lies in memory as a whole."""
        raw = self.stored()
        for start in range(0, len(raw), _CHUNK):
            file.write(raw[start : start + _CHUNK].data)


def own_name(tensor: ir.TensorProtocol, name: str | None = None) -> ir.TensorProtocol:
    """Return the same content under a name of its own: renaming it does not reach the original's owner."""
    shape, name = ir.Shape(tensor.shape.numpy()), name or tensor.name
    if isinstance(tensor, MappedTensor):
        return MappedTensor(tensor.raw, tensor.offset, tensor.dtype, tensor.shape.numpy(), name)
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.raw, shape=shape, name=name)
    return ir.LazyTensor(
        lambda: tensor, dtype=tensor.dtype, shape=shape, name=name, doc_string=tensor.doc_string
    )


def write_tensor(tensor: ir.TensorProtocol, file: BinaryIO) -> int:
    """Write a tensor's bytes and return how many they were; the content is let go afterwards."""
    before = file.tell()
    tofile = getattr(tensor, "tofile", None)
    if tofile is not None:
        tofile(file)
    else:
        file.write(tensor.tobytes())
    return file.tell() - before


class Folder:
    """The folder that a model's external weights lie in; each file is examined once."""

    def __init__(self, base: Path | None) -> None:
        self._base = base
        self._files: dict[str, DataFile] = {}
        self._stretches: dict[Path, dict[tuple[int, int], str]] = {}

    @functools.cached_property
    def base(self) -> Path | None:
        """Return where it really lies."""
        return self._base.resolve() if self._base is not None else None

    @property
    def paths(self) -> set[Path]:
        """Return the files that tensors were mapped from."""
        return {file.path for file in self._files.values()}

    def tensor(self, reference: ir.ExternalTensor) -> MappedTensor:
        """Return the tensor that a reference describes."""
        where = f"The weight {reference.name!r}"
        shape = _static_shape(reference, where)
        file = self._file(str(reference.location), where)
        length = byte_size(reference.dtype, shape)
        offset = reference.offset or 0
        if reference.length is not None and reference.length != length:
            raise ModelError(
                f"{where} announces {reference.length} bytes in {file.path.name}, but its type and shape "
                f"take {length}; the model file is damaged."
            )
        if offset < 0 or offset + length > file.size:
            raise ModelError(
                f"{where} lies at bytes {offset} to {offset + length} of {file.path}, which has {file.size}; "
                "the file is cut short or belongs to another model."
            )
        if length:
            self._stretches.setdefault(file.path, {})[offset, length] = reference.name or ""
        return MappedTensor(file, offset, reference.dtype, shape, reference.name)

    def check(self, checksums: Mapping[str, str]) -> None:
        """Refuse weights that overlap in part, and files that differ from their checksum (SHA-1)."""
        for path, stretches in self._stretches.items():
            for (one, length), (other, _) in itertools.pairwise(sorted(stretches)):
                if other < one + length:
                    names = [stretches[one, length], *(n for (o, _), n in stretches.items() if o == other)]
                    raise ModelError(
                        f"The weights {names[0]!r} and {names[-1]!r} overlap in {path}; the model file is "
                        "damaged."
                    )
        for location, announced in checksums.items():
            file = self._files.get(location)
            if (
                file is not None
                and sha1(file.view().data, usedforsecurity=False).hexdigest() != announced.lower()
            ):
                raise ModelError(
                    f"The file {file.path} differs from the checksum that the model gives for it; it is "
                    "damaged or belongs to another model."
                )

    def _file(self, location: str, where: str) -> DataFile:
        if location not in self._files:
            self._files[location] = DataFile(self._resolve(location, where))
        return self._files[location]

    def _resolve(self, location: str, where: str) -> Path:
        if self.base is None:
            raise ModelError(
                f"{where} lies in the external file {location!r}, and it is not known in which folder; "
                "load the model from its path, or pass base_dir."
            )
        if not _is_plain(location):
            raise ModelError(
                f"{where} names the external file {location!r}; only a relative path below the model's "
                "folder is followed. Put the file beside the model and correct its location."
            )
        try:
            path = (self.base / location).resolve(strict=True)
            info = path.stat()
        except (OSError, RuntimeError) as error:
            raise ModelError(
                f"{where} lies in the external file {self.base / location}, which can't be opened "
                f"({getattr(error, 'strerror', None) or error}); put it beside the model."
            ) from error
        if not path.is_relative_to(self.base):
            raise ModelError(
                f"{where} names the external file {location!r}, a link that leads out of {self.base} (to "
                f"{path}); copy the real files into one folder and load the model from there."
            )
        if not stat.S_ISREG(info.st_mode):
            raise ModelError(f"{where} names the external file {path}, which is not a regular file.")
        if info.st_nlink > 1:
            raise ModelError(
                f"{where} names the external file {path}, which has {info.st_nlink} hard links and may "
                "belong to something else; make a copy of it beside the model."
            )
        return path


def _is_plain(location: str) -> bool:
    if not location or "\0" in location:
        return False
    for flavour in (PurePosixPath(location), PureWindowsPath(location)):
        if flavour.is_absolute() or flavour.drive or flavour.root or ".." in flavour.parts:
            return False
    return True


def _static_shape(reference: ir.ExternalTensor, where: str) -> tuple[int, ...]:
    shape = tuple(dim for dim in reference.shape if isinstance(dim, int))
    if len(shape) != len(reference.shape) or any(dim < 0 for dim in shape):
        raise ModelError(f"{where} has the impossible shape {reference.shape}.")
    if reference.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise ModelError(f"{where} is of type {reference.dtype}, which can't be stored in an external file.")
    return shape


def refer(header: onnx.TensorProto, location: str, offset: int, length: int) -> onnx.TensorProto:
    """Say in a tensor's protobuf that its content lies in a file, and return it."""
    header.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        header.external_data.add(key=key, value=value)
    return header
