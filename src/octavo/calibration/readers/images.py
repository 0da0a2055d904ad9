"""A folder of pictures as samples, decoded in threads ahead of the model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.calibration.readers.ahead import ahead, default_workers
from octavo.calibration.readers.batches import batch_of, in_batches
from octavo.calibration.readers.layout import Layout, layout_of, size_for
from octavo.calibration.readers.order import in_order
from octavo.calibration.readers.picture import SUFFIXES, pillow
from octavo.calibration.readers.preprocessing import (
    PREPROCESSING,
    Preprocess,
    Preset,
    Size,
    find_preprocessing,
)
from octavo.calibration.readers.source import Array, Found, Sample, Source, Specs
from octavo.errors import DataError
from octavo.model.session import InputSpec


@dataclass(frozen=True)
class Images:
    """Pictures, and how each becomes an input; see :func:`images`."""

    files: Path | tuple[Path, ...]
    preprocess: str | Preprocess | None = None
    size: Size | None = None
    batch: int | None = None
    workers: int | None = None

    def for_inputs(self, specs: Specs) -> Source:
        """The samples for a model with these inputs."""
        layout = layout_of(specs)
        given = self.preprocess if self.preprocess is not None else _default(layout.spec)
        function = find_preprocessing(given)
        if isinstance(function, Preset):
            pillow()
        workers = default_workers() if self.workers is None else self.workers
        source = ImageSource(
            self._found(),
            function,
            size_for(layout, self.size, function.size if isinstance(function, Preset) else None),
            layout,
            workers,
            depth=2 * workers + (self.batch or batch_of(layout.spec) or 1),
        )
        return in_batches(source, self.batch, layout.spec)

    def _found(self) -> tuple[Path, ...]:
        if isinstance(self.files, tuple):
            return self.files
        if self.files.is_file():
            return (self.files,)
        found = tuple(pictures(self.files))
        if not found:
            raise DataError(
                f"There is no picture in {self.files}; give a folder of {', '.join(SUFFIXES)} files."
            )
        return found


def images(
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    preprocess: str | Preprocess | None = None,
    *,
    size: Size | None = None,
    batch: int | None = None,
    workers: int | None = None,
) -> Images:
    """Pictures as data: a folder with all that is below it, or a list of files.

    ``preprocess`` is a name of the registry, or a function of a file name and ``(width, height)``. Size,
    channels and element type are the model's; ``size`` is needed where the model leaves it open. ``batch``
    pictures make one feed. ``workers`` threads decode ahead of the model; with 0 it waits for each.
    """
    if isinstance(files, str | os.PathLike):
        given: Path | tuple[Path, ...] = Path(files)
        if not Path(files).exists():
            raise DataError(f"There are no pictures at {files}; give an existing folder.")
    else:
        given = tuple(Path(file) for file in files)
        if not given:
            raise DataError("The list of pictures is empty; give at least one.")
    return Images(given, preprocess, size, batch, workers)


def pictures(folder: Path) -> list[Path]:
    """The pictures below a folder, hidden files left out."""
    return in_order(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _default(spec: InputSpec) -> str:
    if spec.dtype.kind in "iu":
        return "pixels"
    raise DataError(
        f"Pictures need a preprocessing, the one of the model's training, to become {spec.dtype} values of "
        f"{spec.name!r}; choose one of {', '.join(PREPROCESSING)}: octavo.images(folder, 'imagenet'), or "
        "--preprocess imagenet."
    )


@dataclass(frozen=True, eq=False)
class ImageSource:
    """One sample for each picture."""

    files: tuple[Path, ...]
    function: Preprocess
    size: Size
    layout: Layout
    workers: int
    depth: int

    @property
    def length(self) -> int:
        """The number of pictures."""
        return len(self.files)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Pictures by index, decoded ahead."""
        return ahead(self._sample, self.files[first:stop], self.workers, self.depth)

    def _sample(self, file: Path) -> Sample:
        made = (
            self._preset(self.function, str(file)) if isinstance(self.function, Preset) else self._own(file)
        )
        return Found({self.layout.spec.name: made}, str(file))

    def _preset(self, preset: Preset, file: str) -> Array:
        spec, channels = self.layout.spec, self.layout.channels
        if spec.dtype.kind in "iu":
            if spec.dtype == np.int8:
                raise DataError(f"The input {spec.name!r} takes int8; make it with a function of your own.")
            made = preset.pixels(file, self.size, channels).transpose(2, 0, 1)
        else:
            made = preset.values(file, self.size, channels)
        if not self.layout.first:
            made = made.transpose(1, 2, 0)
        return np.ascontiguousarray(made[None], spec.dtype)

    def _own(self, file: Path) -> Array:
        """What a user's function gives, with a batch axis, and channels where the model has them."""
        try:
            made = np.asarray(self.function(str(file), self.size))
        except DataError:
            raise
        except Exception as error:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            raise DataError(
                f"{file}: the preprocessing {name} failed: {type(error).__name__}: {error}."
            ) from error
        spec = self.layout.spec
        if made.ndim == len(spec.shape) - 1:
            made = made[None]
        if made.ndim == 4:
            axis, other = (1, 3) if self.layout.first else (3, 1)
            if made.shape[axis] != self.layout.channels and made.shape[other] == self.layout.channels:
                made = np.moveaxis(made, other, axis)
        if made.dtype.kind == "f" and spec.dtype.kind in "fV":
            made = made.astype(spec.dtype, copy=False)
        return np.ascontiguousarray(made)
