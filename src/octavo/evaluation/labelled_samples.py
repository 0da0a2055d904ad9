"""Samples with labels, from whatever holds them.

==========================  ======================================================================
a folder of folders         images; each folder is a class
a folder and ``labels``     images; a labels file, in the folder or named, gives the class of each
a labels file               names in it are paths of images, relative to the file's own folder
an ``.npz`` file            an array for each input of the model (or ``images``), and ``labels``
two arrays                  ``(images, labels)``
pairs                       ``(feed, label)``; a feed of several samples has several labels
==========================  ======================================================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.core.arguments import check_arguments
from octavo.data.feeds import checked
from octavo.data.readers.numpy_files import archive_arrays
from octavo.data.readers.python_objects import Reader
from octavo.errors import DataError, RecipeError
from octavo.evaluation import label_files
from octavo.evaluation.image_samples import SUFFIXES as IMAGE_SUFFIXES
from octavo.evaluation.task import Array, TaskContext
from octavo.model.runtime.session import InputSpec

LABEL_KEYS = ("labels", "label", "y", "targets")
_IMAGE_KEYS = ("images", "image", "pixels", "x", "data")


@dataclass(frozen=True)
class LabelledSamples:
    """Samples (paths of images, or feeds of one sample each) and their labels.

    ``groups`` says which samples came as one feed; ``folders`` how many class folders gave the labels.
    """

    items: Sequence[Any]
    labels: Sequence[Any]
    groups: Sequence[Sequence[int]] | None = None
    folders: int | None = None

    @property
    def are_images(self) -> bool:
        """Whether the samples are paths of image files."""
        return bool(self.items) and isinstance(self.items[0], Path)


def labelled_samples(
    data: Any, labels: Any, context: TaskContext, *, scale: float | None = None, label_arrays: bool = False
) -> LabelledSamples:
    """Return the samples of any kind of data, at most as many as the call asks for.

    With ``label_arrays`` labels beside arrays may be arrays themselves, such as masks of segments.
    """
    check_arguments(scale=scale)
    if scale is not None and not 0 < scale < math.inf:
        raise RecipeError(
            f"scale={scale!r} is not above 0; give what the values are divided by, such as 255."
        )
    truth_rank = None if label_arrays else 1
    if isinstance(data, str | Path):
        return _from_path(Path(data), labels, context, scale, truth_rank)
    if isinstance(data, tuple) and data and all(isinstance(one, Path) for one in data):
        return _in_order(data, _listed_labels(labels, "The list of images"), "The list", context.samples)
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "__array__"):
        arrays = {"images": np.asarray(data[0])}
        return _from_arrays(arrays, data[1], context, scale, "The data", truth_rank)
    if isinstance(data, np.ndarray):
        truth = _listed_labels(labels, "The array")
        return _from_arrays({"images": data}, truth, context, scale, "The array", truth_rank)
    return _from_pairs(iter(data.get_next, None) if isinstance(data, Reader) else data, labels, context)


def whole_feeds(data: Any, context: TaskContext) -> LabelledSamples:
    """Return feeds as they come, each with its label as it is: labels may be arrays."""
    pairs = list(itertools.islice(_as_pairs(data), context.samples))
    feeds = [checked(feed, context.specs, index) for index, (feed, _) in enumerate(pairs)]
    return LabelledSamples(feeds, [label for _, label in pairs])


# ---- files and folders


def _from_path(
    path: Path, labels: Any, context: TaskContext, scale: float | None, truth_rank: int | None
) -> LabelledSamples:
    if not path.exists():
        raise DataError(f"There is no data at {path}; give an existing file or folder.")
    if path.is_dir():
        return _from_folder(path, labels, context.samples)
    if path.suffix.lower() == ".npz":
        arrays = archive_arrays(path)
        inputs = {spec.name for spec in context.specs}
        key = next((key for key in LABEL_KEYS if key in arrays and key not in inputs), None)
        own = arrays.pop(key) if key is not None else None
        if labels is None and own is None:
            raise DataError(
                f"{path} holds {', '.join(arrays)} but no labels; add them: np.savez(path, …, labels=…)."
            )
        truth = own if labels is None else _listed_labels(labels, str(path))
        return _from_arrays(arrays, truth, context, scale, str(path), truth_rank)
    if path.suffix.lower() in label_files.SUFFIXES:
        return _from_labels_file(path, path.parent, context.samples)
    raise DataError(
        f"{path} does not hold labelled samples; give a folder of images, a labels file "
        f"({', '.join(label_files.SUFFIXES)}) or an .npz file."
    )


def _from_folder(folder: Path, labels: Any, limit: int | None) -> LabelledSamples:
    images = _images(folder)
    if isinstance(labels, str | Path):
        return _from_labels_file(Path(labels), folder, limit)
    if labels is not None:
        return _in_order(images, list(labels), f"The folder {folder}", limit)
    folders = sorted(one for one in folder.iterdir() if one.is_dir() and _images(one))
    if folders and images:
        raise DataError(
            f"{folder} holds images and folders of images; move the images into folders, one for each class, "
            "or name a labels file: labels=…"
        )
    if folders:
        numbered = all(one.name.isdigit() for one in folders)
        rows = [(file, int(one.name) if numbered else one.name) for one in folders for file in _images(one)]
        taken = _evenly_spaced(rows, limit)
        return LabelledSamples(
            [path for path, _ in taken],
            [label for _, label in taken],
            folders=None if numbered else len(folders),
        )
    if not images:
        raise DataError(f"The folder {folder} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    beside = [folder / f"labels{suffix}" for suffix in label_files.SUFFIXES]
    file = next((one for one in beside if one.is_file()), None)
    if file is None:
        raise DataError(
            f"The images in {folder} have no labels; sort them into a folder for each class, put a "
            "labels.csv beside them (file name, label), or name such a file: labels=…"
        )
    return _from_labels_file(file, folder, limit)


def _evenly_spaced(rows: list[tuple[Path, Any]], limit: int | None) -> list[tuple[Path, Any]]:
    """Return all rows, or evenly spaced ones: the first ones alone would all be of one class."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[index] for index in np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def _images(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in IMAGE_SUFFIXES and one.is_file())


def _from_labels_file(file: Path, folder: Path, limit: int | None) -> LabelledSamples:
    """Return the images that a labels file names, in its order."""
    found = label_files.entries(file)
    if found[0][0] is None:
        return _in_order(_images(folder), [label for _, label in found], f"The folder {folder}", limit)
    taken = found[:limit]
    missing = [name for name, _ in taken if not (folder / str(name)).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(taken)} images named in {file} are not in {folder}, the first is "
            f"{missing[0]!r}; give the folder that the names are relative to."
        )
    return LabelledSamples([folder / str(name) for name, _ in taken], [label for _, label in taken])


def _in_order(items: Sequence[Any], labels: Sequence[Any], where: str, limit: int | None) -> LabelledSamples:
    if len(items) != len(labels):
        raise DataError(
            f"{where} holds {len(items)} samples, but there are {len(labels)} labels; each sample needs one."
        )
    return LabelledSamples(items[:limit], labels[:limit])


def _listed_labels(labels: Any, where: str) -> Any:
    if labels is None:
        raise DataError(f"{where} has no labels; give them: labels=…")
    if isinstance(labels, str | Path):
        return [label for _, label in label_files.entries(Path(labels))]
    return labels


# ---- arrays


def _from_arrays(
    arrays: Mapping[str, Array],
    labels: Any,
    context: TaskContext,
    scale: float | None,
    where: str,
    truth_rank: int | None,
) -> LabelledSamples:
    """Return arrays whose first axis counts the samples as feeds of one sample each."""
    inputs = _by_input(arrays, context.specs, where)
    counts = {name: len(array) for name, array in inputs.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise DataError(f"{where} holds different numbers of samples: {listed}; save as many of each.")
    truth = np.asarray(labels)
    if truth.ndim == 0 or truth_rank not in (None, truth.ndim):
        raise DataError(f"{where} has labels of shape {list(truth.shape)}; each sample needs one number.")
    rows = _ArrayRows(inputs, {spec.name: spec for spec in context.specs}, scale, where)
    return _in_order(rows, truth.tolist() if truth.ndim == 1 else list(truth), where, context.samples)


def _by_input(arrays: Mapping[str, Array], specs: Sequence[InputSpec], where: str) -> dict[str, Array]:
    names = [spec.name for spec in specs]
    if all(name in arrays for name in names):
        return {name: arrays[name] for name in names}
    if len(names) == 1:
        key = next((key for key in _IMAGE_KEYS if key in arrays), None)
        if key is None and len(arrays) == 1:
            key = next(iter(arrays))
        if key is not None:
            return {names[0]: arrays[key]}
    raise DataError(
        f"{where} holds {', '.join(arrays) or 'nothing'}, but the model has the inputs {', '.join(names)}; "
        "save an array for each input, by its name."
    )


class _ArrayRows(Sequence[Any]):
    """Arrays as feeds of one sample each, cut out when they are used."""

    def __init__(
        self, arrays: Mapping[str, Array], specs: Mapping[str, InputSpec], scale: float | None, where: str
    ) -> None:
        self._arrays, self._specs, self._scale, self._where = arrays, specs, scale, where

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return {name: self._row(array, self._specs[name], index) for name, array in self._arrays.items()}

    def _row(self, array: Array, spec: InputSpec, index: int) -> Array:
        row = array[index : index + 1]
        if row.ndim == len(spec.shape) - 1:
            row = row[:, None]  # images of one channel, saved without the channel axis
        if row.dtype == spec.dtype:
            return row if self._scale is None else (row / spec.dtype.type(self._scale)).astype(spec.dtype)
        if row.dtype.kind in "ui" and spec.dtype.kind == "f":
            if self._scale is None:
                raise DataError(
                    f"{self._where} holds {row.dtype} for the input {spec.name!r}, which takes {spec.dtype}; "
                    "give what the values are divided by: scale=255, or scale=1."
                )
            return np.asarray(row.astype(spec.dtype) / spec.dtype.type(self._scale))
        return row.astype(spec.dtype) if row.dtype.kind == spec.dtype.kind else row


# ---- pairs


def _as_pairs(data: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise DataError(
            f"Labelled data can't be of type {type(data).__name__}; give a path, (images, labels), or pairs"
            " of (feed, label)."
        )
    for index, pair in enumerate(data):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                f"Sample {index} has no label; give pairs (feed, label), or the labels separately: labels=…"
            )
        yield pair[0], pair[1]


def _from_pairs(data: Any, labels: Any, context: TaskContext) -> LabelledSamples:
    """Return feeds with their labels; a feed of several samples is split, and fed together again."""
    pairs = _as_pairs(data) if labels is None else _zipped(data, list(_listed_labels(labels, "The data")))
    items: list[Any] = []
    truth: list[Any] = []
    groups: list[list[int]] = []
    for number, (feed, label) in enumerate(pairs):
        if context.samples is not None and len(items) >= context.samples:
            break
        given = checked(feed, context.specs, number)
        own = list(np.atleast_1d(np.asarray(label)).tolist())
        counts = {len(array) for array in given.values() if array.ndim}
        if len(own) > 1 and counts != {len(own)}:
            raise DataError(f"Sample {number} has {len(own)} labels, but its arrays have {counts} rows.")
        rows = [_row(given, i) for i in range(len(own))] if len(own) > 1 else [given]
        left = None if context.samples is None else context.samples - len(items)
        groups.append(list(range(len(items), len(items) + len(own[:left]))))
        items += rows[:left]
        truth += own[:left]
    return LabelledSamples(items, truth, groups)


def _zipped(data: Iterable[Any], labels: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    number = -1
    for number, feed in enumerate(data):
        if number >= len(labels):
            break
        yield feed, labels[number]
    if number + 1 != len(labels):
        raise DataError(f"There are {len(labels)} labels, but not as many samples; each sample needs one.")


def _row(feed: Mapping[str, Array], index: int) -> dict[str, Array]:
    return {name: array[index : index + 1] for name, array in feed.items()}
