"""Readers of calibration data: whatever the caller has, as a :class:`~.source.Source` of samples.

=====================  ==========================================================================
``source``             the protocol that all of them follow
``arrays``             how samples lie in arrays
``numpy_files``        ``.npy`` and ``.npz`` files, folders and ``archives`` of them
``tensors``            ``TensorProto`` bundles, and ``test_data_set_N/input_0.pb``
``images``             pictures, made into inputs by a function of ``preprocessing``
``text``               lines of text and a tokenizer file
``objects``            lists, iterators, readers, datasets, loaders
``calls``              functions, also by name as ``module:function``
``made_up``            random samples
``batches``            several samples in one feed
``ahead``              work in threads, some steps ahead
=====================  ==========================================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octavo.calibration.readers.arrays import Arrays
from octavo.calibration.readers.batches import Batched
from octavo.calibration.readers.calls import Call, is_call
from octavo.calibration.readers.objects import Listed, OneWay, Reader, Repeatable, Rows, is_dataset
from octavo.calibration.readers.paths import path_source
from octavo.calibration.readers.source import Found, Given, Sample, Source, Specs, place
from octavo.errors import DataError

__all__ = ["Found", "Given", "Reader", "Sample", "Source", "Specs", "place", "source_of"]


def can_repeat(data: Any) -> bool:
    """Whether data can be gone through more than once."""
    if isinstance(data, Batched):
        return can_repeat(data.data)
    return not isinstance(data, Reader | Iterator) or hasattr(data, "rewind")


def source_of(data: Any, specs: Specs) -> Source:
    """The samples of any kind of data, for a model with these inputs."""
    if isinstance(data, Given):
        return data.for_inputs(specs)
    if isinstance(data, str) and is_call(data):
        return Call(data, tuple(specs), source_of)
    if isinstance(data, str | os.PathLike):
        return path_source(Path(data), specs)
    if isinstance(data, np.ndarray):
        return Arrays.of(data, specs)
    if isinstance(data, Reader | Iterator):
        return OneWay(data, specs)
    if is_dataset(data):
        return Rows.of(data, specs)
    if isinstance(data, Mapping):
        raise DataError(
            "The calibration data is a dict, which is one sample; put it into a list: [sample, …]."
        )
    if isinstance(data, list | tuple):
        return Listed(data, specs)
    if isinstance(data, Iterable):
        return Repeatable(data, specs)
    if callable(data):
        return Call(data, tuple(specs), source_of)
    raise DataError(
        f"Calibration data can't be a {type(data).__name__}; give a list of {{input name: array}}, a "
        "reader with get_next(), or the path of .npz files."
    )
