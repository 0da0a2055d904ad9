"""Samples with labels, from whatever holds them.

==========================  ======================================================================
a folder of folders         pictures; each folder is a class
a folder and ``labels``     pictures; a labels file, in the folder or named, says the class of each
a labels file               names in it are paths of pictures, from the file's own folder
an ``.npz`` file            an array for each input of the model (or ``images``), and ``labels``
two arrays                  ``(images, labels)``
pairs                       ``(feed, label)``; a feed of several samples has several labels
==========================  ======================================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.data import checked
from octavo.calibration.readers import Reader
from octavo.errors import DataError
from octavo.evaluation import labels as label_files
from octavo.evaluation.arrays import archive, rows
from octavo.evaluation.pictures import SUFFIXES as PICTURES
from octavo.evaluation.task import Setting

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Labelled:
    """Samples (paths of pictures, or feeds of one sample each) and their labels.

    ``groups`` says which samples came as one feed; ``folders`` how many class folders gave the numbers.
    """

    parts: Sequence[Any]
    labels: Sequence[Any]
    groups: Sequence[Sequence[int]] | None = None
    folders: int | None = None


def labelled(data: Any, labels: Any, setting: Setting, *, scale: float | None = None) -> Labelled:
    """The samples of any kind of data, at most as many as the call wants."""
    limit = setting.samples
    if isinstance(data, str | Path):
        path = Path(data)
        if not path.exists():
            raise DataError(f"There is no data at {path}; give an existing file or folder.")
        if path.is_dir():
            return _pictures(path, labels, limit)
        if path.suffix.lower() == ".npz":
            arrays, own = archive(path, setting.specs)
            if labels is None and own is None:
                raise DataError(
                    f"{path} holds {', '.join(arrays)} and no labels; add them: np.savez(path, …, labels=…)."
                )
            truth = own if labels is None else _plain_labels(labels, str(path))
            return _arrays(arrays, truth, setting, scale, str(path))
        if path.suffix.lower() in label_files.SUFFIXES:
            return _listed(path, path.parent, limit)
        raise DataError(
            f"{path} holds no labelled samples; give a folder of pictures, a labels file "
            f"({', '.join(label_files.SUFFIXES)}) or an .npz file."
        )
    if isinstance(data, tuple) and data and all(isinstance(one, Path) for one in data):
        return _in_order(data, list(_plain_labels(labels, "The list of pictures")), "The list", limit)
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "__array__"):
        return _arrays({"images": np.asarray(data[0])}, data[1], setting, scale, "The data")
    if isinstance(data, np.ndarray):
        return _arrays({"images": data}, _plain_labels(labels, "The array"), setting, scale, "The array")
    return _pairs(iter(data.get_next, None) if isinstance(data, Reader) else data, labels, setting)


def feed_pairs(data: Any, setting: Setting) -> list[tuple[Any, Any]]:
    """Feeds as they come, each with its label."""
    if isinstance(data, str | Path):
        found = labelled(data, None, setting)
        if found.parts and isinstance(found.parts[0], Path):
            raise DataError(
                f"{data} holds pictures; a metric of your own takes feeds: an .npz file, or pairs."
            )
        return list(zip(found.parts, found.labels, strict=True))
    pairs = itertools.islice(_as_pairs(data), setting.samples)
    return [(checked(feed, setting.specs, index), label) for index, (feed, label) in enumerate(pairs)]


def _pictures(folder: Path, labels: Any, limit: int | None) -> Labelled:
    if labels is not None:
        if isinstance(labels, str | Path):
            return _listed(Path(labels), folder, limit)
        return _in_order(_files(folder), list(labels), f"The folder {folder}", limit)
    folders = sorted(one for one in folder.iterdir() if one.is_dir() and _files(one))
    if folders:
        if _files(folder):
            raise DataError(
                f"{folder} holds pictures and folders of pictures; move the pictures into folders, one for "
                "each class, or name a labels file: labels=…"
            )
        numbered = all(one.name.isdigit() for one in folders)
        rows = [(file, int(one.name) if numbered else one.name) for one in folders for file in _files(one)]
        taken = _spread(rows, limit)
        return Labelled(
            [p for p, _ in taken], [n for _, n in taken], folders=None if numbered else len(folders)
        )
    if not _files(folder):
        raise DataError(f"The folder {folder} holds no picture ({', '.join(sorted(PICTURES))}).")
    beside = [folder / f"labels{suffix}" for suffix in label_files.SUFFIXES]
    file = next((one for one in beside if one.is_file()), None)
    if file is None:
        raise DataError(
            f"The pictures in {folder} have no labels; sort them into a folder for each class, put a "
            "labels.csv beside them (file name, label), or name such a file: labels=…"
        )
    return _listed(file, folder, limit)


def _spread(rows: list[tuple[Path, Any]], limit: int | None) -> list[tuple[Path, Any]]:
    """All rows, or evenly spaced ones: the first ones alone would all be of one class."""
    if limit is None or limit >= len(rows):
        return rows
    return [rows[place] for place in np.linspace(0, len(rows) - 1, limit).round().astype(int)]


def _files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.suffix.lower() in PICTURES and one.is_file())


def _listed(file: Path, folder: Path, limit: int | None) -> Labelled:
    """The pictures that a labels file names, in its order."""
    found = label_files.entries(file)
    if found[0][0] is None:
        return _in_order(_files(folder), [label for _, label in found], f"The folder {folder}", limit)
    taken = found[:limit]
    missing = [name for name, _ in taken if not (folder / str(name)).is_file()]
    if missing:
        raise DataError(
            f"{file} names {len(missing)} of {len(taken)} pictures that are not in {folder}, the first is "
            f"{missing[0]!r}; give the folder that the names start from."
        )
    return Labelled([folder / str(name) for name, _ in taken], [label for _, label in taken])


def _in_order(parts: Sequence[Any], labels: Sequence[Any], where: str, limit: int | None) -> Labelled:
    if len(parts) != len(labels):
        raise DataError(
            f"{where} holds {len(parts)} samples, and there are {len(labels)} labels; each needs one."
        )
    return Labelled(parts[:limit], labels[:limit])


def _plain_labels(labels: Any, where: str) -> Any:
    if labels is None:
        raise DataError(f"{where} has no labels; give them: labels=…")
    if isinstance(labels, str | Path):
        return [label for _, label in label_files.entries(Path(labels))]
    return labels


def _arrays(
    arrays: Mapping[str, Array], labels: Any, setting: Setting, scale: float | None, where: str
) -> Labelled:
    parts = rows(arrays, setting.specs, scale, where)
    truth = np.asarray(labels)
    if truth.ndim != 1:
        raise DataError(f"{where} has labels of shape {list(truth.shape)}; each sample needs one number.")
    return _in_order(parts, truth.tolist(), where, setting.samples)


def _as_pairs(data: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise DataError(
            f"Labelled data can't be a {type(data).__name__}; give a path, (images, labels), or pairs of "
            "(feed, label)."
        )
    for index, pair in enumerate(data):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(
                f"Sample {index} has no label; each has to be a pair (feed, label), or the labels have to be "
                "given apart: labels=…"
            )
        yield pair[0], pair[1]


def _pairs(data: Any, labels: Any, setting: Setting) -> Labelled:
    """Feeds with their labels; a feed of several samples is taken apart, and fed together again."""
    pairs = _as_pairs(data) if labels is None else _beside(data, list(_plain_labels(labels, "The data")))
    parts: list[Any] = []
    truth: list[Any] = []
    groups: list[list[int]] = []
    for number, (feed, label) in enumerate(pairs):
        if setting.samples is not None and len(parts) >= setting.samples:
            break
        given = checked(feed, setting.specs, number)
        own = list(np.atleast_1d(np.asarray(label)).tolist())
        counts = {len(array) for array in given.values() if array.ndim}
        if len(own) > 1 and counts != {len(own)}:
            raise DataError(f"Sample {number} has {len(own)} labels, and its arrays have {counts} rows.")
        cut = [_row(given, i) for i in range(len(own))] if len(own) > 1 else [given]
        left = None if setting.samples is None else setting.samples - len(parts)
        groups.append(list(range(len(parts), len(parts) + len(own[:left]))))
        parts += cut[:left]
        truth += own[:left]
    return Labelled(parts, truth, groups)


def _beside(data: Iterable[Any], labels: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    number = -1
    for number, feed in enumerate(data):
        if number >= len(labels):
            break
        yield feed, labels[number]
    if number + 1 != len(labels):
        raise DataError(f"There are {len(labels)} labels and not as many samples; each sample needs one.")


def _row(feed: Mapping[str, Array], index: int) -> dict[str, Array]:
    return {name: array[index : index + 1] for name, array in feed.items()}
