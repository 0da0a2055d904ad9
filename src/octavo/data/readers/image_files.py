"""Images as samples: a folder or a list of files, decoded in threads ahead of the model; needs Pillow."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from octavo.core.arguments import check_type
from octavo.core.cpu import cores
from octavo.data.batches import batch_of, in_batches
from octavo.data.images.image_decoding import SUFFIXES, pillow
from octavo.data.images.input_layout import InputLayout, layout_of, size_for
from octavo.data.images.preprocessing import PREPROCESSING, Preprocess, Preset, Size, find_preprocessing
from octavo.data.named_functions import is_named_function
from octavo.data.source import Array, FoundIn, Sample, Source, Specs, in_order
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

T = TypeVar("T")
U = TypeVar("U")

_MAX_THREADS = 4  # that decode; more of them wait for the model


def read(data: object, specs: Specs) -> Source | None:
    """Return the samples of an image, or of a folder that holds images."""
    if not isinstance(data, Path):
        return None
    is_images = images_below(data) if data.is_dir() else data.suffix.lower() in SUFFIXES
    return Images(data).for_inputs(specs) if is_images else None


@dataclass(frozen=True)
class Images:
    """Images, and how each becomes an input; see :func:`images`."""

    files: Path | tuple[Path, ...]
    preprocess: str | Preprocess | None = None
    size: Size | None = None
    batch: int | None = None
    workers: int | None = None

    def for_inputs(self, specs: Specs) -> Source:
        """Return the samples for a model with these inputs."""
        layout = layout_of(specs)
        given = self.preprocess if self.preprocess is not None else _default(layout.spec)
        function = find_preprocessing(given)
        if isinstance(function, Preset):
            pillow()
        workers = min(_MAX_THREADS, cores()) if self.workers is None else self.workers
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
        found = tuple(images_below(self.files))
        if not found:
            raise DataError(
                f"There is no image in {self.files}; give a folder of {', '.join(SUFFIXES)} files."
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
    """Return images as data: a folder and its subfolders, or a list of files.

    ``preprocess`` is a name of the registry, or a function of a file name and ``(width, height)``. Size,
    channels and element type are the model's; ``size`` is needed where the model leaves it open. ``batch``
    images make one feed. ``workers`` threads decode ahead of the model; with 0 it waits for each.
    """
    check_type("files", files, (str, os.PathLike, Sequence), "a folder or a list of image files")
    if isinstance(files, str | os.PathLike):
        given: Path | tuple[Path, ...] = Path(files)
        if not Path(files).exists():
            raise DataError(f"There are no images at {files}; give an existing folder.")
    else:
        given = tuple(Path(file) for file in files)
        if not given:
            raise DataError("The list of images is empty; give at least one.")
    if isinstance(preprocess, str) and not is_named_function(preprocess):
        find_preprocessing(preprocess)
    return Images(given, preprocess, size, batch, workers)


def images_below(folder: Path) -> list[Path]:
    """Return the images below a folder; hidden files are left out."""
    return in_order(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def _default(spec: InputSpec) -> str:
    if spec.dtype.kind in "iu":
        return "pixels"
    raise DataError(
        f"Images need the preprocessing of the model's training to become {spec.dtype} values of "
        f"{spec.name!r}; choose one of {', '.join(PREPROCESSING)}, for example preprocess='imagenet',"
        " or 'unit' for values of 0 … 1."
    )


@dataclass(frozen=True, eq=False)
class ImageSource:
    """One sample for each image."""

    files: tuple[Path, ...]
    function: Preprocess
    size: Size
    layout: InputLayout
    workers: int
    depth: int

    @property
    def length(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give images by index, decoded ahead."""
        return map_ahead(self._sample, self.files[first:stop], self.workers, self.depth)

    def _sample(self, file: Path) -> Sample:
        function = self.function
        made = self._preset(function, str(file)) if isinstance(function, Preset) else self._own(file)
        return FoundIn({self.layout.spec.name: made}, str(file))

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
        """Return the array of a user's function with a batch axis, and channels where the model has them."""
        try:
            made = np.asarray(self.function(str(file), self.size))
        except DataError:
            raise
        except (Exception, SystemExit) as error:
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


def map_ahead(function: Callable[[T], U], items: Iterable[T], workers: int, depth: int) -> Iterator[U]:
    """Give the result of the function for each item in order, computed in threads ahead of the consumer.

    At most ``depth`` results are begun before they are taken. Without workers nothing is done ahead.
    """
    if workers < 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(workers, thread_name_prefix="octavo-data")
    waiting: deque[Future[U]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= max(depth, workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
