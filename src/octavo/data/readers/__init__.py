"""Readers of data: each turns one kind of data into a :class:`~octavo.data.source.Source` of samples.

=====================  ==========================================================================
``numpy_files``        ``.npy`` and ``.npz`` files, folders and ``archives`` of them
``tensor_files``       ``TensorProto`` bundles, and ``test_data_set_N/input_0.pb``
``image_files``        images (needs Pillow)
``text_files``         texts and a tokenizer file (needs tokenizers)
``array_samples``      arrays in memory
``several_paths``      a list of paths, or a pattern such as ``calib/*.npz``
``python_objects``     lists, iterators, readers with ``get_next()``, datasets, loaders
``functions``          functions, also by name as ``module:function``
``random_samples``     random samples
=====================  ==========================================================================

A reader is a function of the data and the inputs of the model that returns a source, or None where the data
is not of its kind; paths reach it as :class:`~pathlib.Path`. To add one: a file here, and a line in
:data:`READERS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from octavo.core.files import similar_file
from octavo.core.lazy import load_entry
from octavo.data.named_functions import is_named_function
from octavo.data.readers.several_paths import matching
from octavo.data.source import Given, Source, Specs
from octavo.errors import DataError

__all__ = ["READERS", "refuse_missing", "source_of"]

DataReader: TypeAlias = Callable[[Any, Specs], Source | None]

# Module of octavo.data.readers and function; the first that takes the data reads it.
READERS = [
    "functions:read_named_function",
    "tensor_files:read",
    "numpy_files:read",
    "image_files:read",
    "text_files:read",
    "array_samples:read",
    "several_paths:read",
    "python_objects:read",
    "functions:read_function",
]


def source_of(data: Any, specs: Specs) -> Source:
    """Return the samples of any kind of data, for a model with these inputs."""
    if isinstance(data, Given):
        return data.for_inputs(specs)
    if isinstance(data, str | os.PathLike) and not is_named_function(data):
        found = matching(os.fspath(data))
        return _at_path(found[0], specs) if len(found) == 1 else _found(found, specs)
    return _found(data, specs)


def refuse_missing(path: Path) -> None:
    """Raise where there is neither a file nor a folder, with what may be meant."""
    if path.exists():
        return
    hint, advice = similar_file(path), "Give an existing file or folder."
    if path.suffix == ".onnx":
        hint, advice = ".", f"The second argument is data; the output is output={str(path)!r}."
    elif "," in path.name and path.with_name(path.name.partition(",")[0]).exists():
        hint, advice = ".", "Several files are given one by one: a list in Python, --data a.npz b.npz."
    raise DataError(f"There is no calibration data at {path}{hint} {advice}")


def _at_path(path: Path, specs: Specs) -> Source:
    try:
        refuse_missing(path)
        return _found(path, specs)
    except OSError as error:
        raise DataError(f"{path} can't be read as calibration data: {error.strerror or error}.") from error


def _found(data: Any, specs: Specs) -> Source:
    for line in READERS:
        read: DataReader = load_entry("octavo.data.readers", line)
        source = read(data, specs)
        if source is not None:
            return source
    raise _unknown(data)


def _unknown(data: Any) -> DataError:
    if not isinstance(data, Path):
        return DataError(
            f"Calibration data can't be of type {type(data).__name__}; give a list of {{input name: array}},"
            " a reader with get_next(), or the path of .npz files."
        )
    if data.is_dir():
        return DataError(
            f"The folder {data} holds no .npz or .npy file, no image and no test_data_set_0/input_0.pb; put "
            "the calibration samples there."
        )
    return DataError(
        f"{data} is not calibration data; give a .npy, .npz or .pb file, a .zip or .tar archive, an image, "
        "or a folder."
    )
