"""The data reader, the only part of this example that depends on the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octavo.evaluation.readers import ImageNetDataReader
from octavo.model import io
from octavo.model.samples import specs_of
from octavo.quantization import CalibrationDataReader

SHIPPED = Path(__file__).resolve().parent.parent / "fashion_mnist"


class ArrayReader(CalibrationDataReader):
    """Pictures in one array of an ``.npz`` file, whole numbers from 0 to 255, fed one by one as 0 … 1."""

    def __init__(self, file: Path, input_name: str) -> None:
        with np.load(file) as archive:
            self.pictures = archive["pixels"]
        self.input_name = input_name
        self.rewind()

    def get_next(self) -> dict[str, Any] | None:
        picture = next(self.left, None)
        return None if picture is None else {self.input_name: picture[None].astype(np.float32) / 255}

    def rewind(self) -> None:
        self.left = iter(self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)


def reader(data: Path, model: Path, limit: int) -> Any:
    """A reader for a folder of pictures (prepared as for ImageNet), or for an ``.npz`` like the one here."""
    if data.is_dir():
        return ImageNetDataReader(data, model, size_limit=limit)
    found = ArrayReader(data, specs_of(io.load(model))[0].name)
    found.pictures = found.pictures[: limit or None]
    found.rewind()
    return found
