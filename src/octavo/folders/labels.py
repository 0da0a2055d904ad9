"""The right answers to samples: transcripts of clips, classes of images, texts and arrays.

They come with the call or lie beside the data: as ``labels.csv`` (or ``.tsv``, ``.txt``, ``.json``) in a
folder of clips or images, or as the array ``labels`` of an ``.npz`` file. A labels file names its samples, or
has one label for each of them in their order (:mod:`octavo.evaluation.label_files`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.data.readers.numpy_files import archive_arrays
from octavo.errors import DataError
from octavo.evaluation import label_files
from octavo.evaluation.labelled_samples import LABEL_KEYS
from octavo.folders.parts import Part


@dataclass(frozen=True)
class Labels:
    """Labels by the names of files, or in the order of the samples."""

    named: Mapping[str, Any] = field(default_factory=dict)
    listed: Sequence[Any] = ()
    where: str = ""

    def __bool__(self) -> bool:
        return bool(self.named) or len(self.listed) > 0

    def of(self, index: int, name: str) -> Any:
        """The label of a sample by its place and the name of its file; None if it has none."""
        if self.named:
            return self.named.get(name, self.named.get(Path(name).stem))
        if not len(self.listed):
            return None
        if index >= len(self.listed):
            raise DataError(
                f"{self.where} holds {len(self.listed)} labels, and there are more samples; each needs one."
            )
        return self.listed[index]


def labels_of(data: Any, given: Any, parts: Sequence[Part]) -> Labels:
    """Return the labels that come with a call, or lie beside its data."""
    if given is not None and not isinstance(given, str | Path):
        return Labels(listed=list(given), where="The list of labels")
    path = Path(data) if isinstance(data, str | Path) else None
    file = Path(given) if given is not None else _beside(path)
    if file is None:
        return _in_archive(path, parts)
    entries = label_files.entries(file)
    if entries[0][0] is None:
        return Labels(listed=[label for _, label in entries], where=str(file))
    return Labels(named={str(name): label for name, label in entries}, where=str(file))


def _beside(path: Path | None) -> Path | None:
    if path is None or not path.is_dir():
        return None
    files = (path / f"labels{suffix}" for suffix in label_files.SUFFIXES)
    return next((file for file in files if file.is_file()), None)


def _in_archive(path: Path | None, parts: Sequence[Part]) -> Labels:
    if path is None or path.suffix.lower() != ".npz" or not path.is_file():
        return Labels()
    inputs = {name for part in parts for name in part.input_names}
    arrays = archive_arrays(path)
    key = next((key for key in LABEL_KEYS if key in arrays and key not in inputs), None)
    if key is None or arrays[key].ndim != 1:
        return Labels()
    return Labels(listed=arrays[key].tolist(), where=f"The array {key} of {path}")
