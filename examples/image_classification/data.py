"""The data reader, the only part of this example that depends on the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.evaluation.detection.reader_classes import ImageNetDataReader
from octavo.model.files import io
from octavo.model.runtime.samples import specs_of
from octavo.quantization import CalibrationDataReader

SHIPPED = Path(__file__).resolve().parent.parent / "fashion_mnist"


class ArrayReader(CalibrationDataReader):
    """The images of an ``.npz`` file, fed one by one; integers from 0 to 255 become 0 … 1."""

    def __init__(self, file: Path, input_name: str) -> None:
        with np.load(file) as archive:
            images = archive[archive.files[0]]
        self.images = images if images.dtype == np.float32 else images.astype(np.float32) / np.float32(255)
        self.input_name = input_name
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        image = next(self.left, None)
        return None if image is None else {self.input_name: image[None]}

    def rewind(self) -> None:
        self.left = iter(self.images)

    def __len__(self) -> int:
        return len(self.images)


def reader(data: Path, model: Path, limit: int) -> Any:
    """A reader for a folder of images (prepared as for ImageNet), or for an ``.npz`` like the one here."""
    if data.is_dir():
        return ImageNetDataReader(data, model, size_limit=limit)
    found = ArrayReader(data, specs_of(io.load(model))[0].name)
    found.images = found.images[: limit or None]
    found.rewind()
    return found
