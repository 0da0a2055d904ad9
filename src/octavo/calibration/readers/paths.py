"""What a path holds: numpy files, tensors, archives, pictures."""

from __future__ import annotations

from pathlib import Path

from octavo.calibration.readers import numpy_files
from octavo.calibration.readers.archives import is_archive
from octavo.calibration.readers.images import Images, pictures
from octavo.calibration.readers.order import in_order
from octavo.calibration.readers.picture import SUFFIXES as PICTURES
from octavo.calibration.readers.source import Source, Specs
from octavo.calibration.readers.tensors import DataSets, bundle, data_sets
from octavo.errors import DataError

TEXTS = (".txt", ".jsonl", ".csv", ".tsv")


def path_source(path: Path, specs: Specs) -> Source:
    """The samples of a file or folder."""
    try:
        if path.is_dir():
            return _folder(path, specs)
        there = path.exists()
    except OSError as error:
        raise DataError(f"{path} can't be read as calibration data: {error.strerror or error}.") from error
    if not there:
        raise DataError(f"There is no calibration data at {path}; give an existing file or folder.")
    suffix = path.suffix.lower()
    if suffix in numpy_files.SUFFIXES:
        return numpy_files.one_file(path, specs)
    if suffix == ".pb":
        return bundle(path, specs)
    if is_archive(path):
        return numpy_files.archived_files(path, specs)
    if suffix in PICTURES:
        return Images(path).for_inputs(specs)
    if suffix in TEXTS:
        raise DataError(
            f"{path} is no calibration data without a tokenizer; give one: octavo.text(path, "
            "tokenizer='tokenizer.json'), or --tokenizer tokenizer.json."
        )
    raise DataError(
        f"{path} is no calibration data; give a .npy, .npz or .pb file, a .zip or .tar archive, or a folder."
    )


def _folder(path: Path, specs: Specs) -> Source:
    sets = data_sets(path)
    if sets:
        return DataSets(sets, tuple(specs))
    found = in_order(p for p in path.iterdir() if p.suffix.lower() in numpy_files.SUFFIXES and p.is_file())
    if found:
        return numpy_files.many_files(tuple(found), specs)
    if pictures(path):
        return Images(path).for_inputs(specs)
    raise DataError(
        f"The folder {path} holds no .npz or .npy file, no picture and no test_data_set_0/input_0.pb; put "
        "the calibration samples there."
    )
