"""The images shipped with the Fashion-MNIST example, in the form its model takes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).resolve().parent


class Samples:
    """Images as model inputs, one at a time; may be iterated any number of times."""

    def __init__(self, images: npt.NDArray[np.float32]) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
        for index in range(len(self._images)):
            yield {"image": self._images[index : index + 1]}


def calibration() -> Samples:
    """The 256 calibration samples: `{"image": float32 [1, 1, 28, 28]}`, in 0..1."""
    with np.load(HERE / "calibration.npz") as archive:
        return Samples(archive["image"])


def test() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The 1,000 test images, float32 [1000, 1, 28, 28] in 0..1, and their labels, int64 [1000]."""
    with np.load(HERE / "test.npz") as archive:
        return to_input(archive["pixels"]), archive["labels"]


def to_input(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Pixels in 0..255 as the model's float32 input in 0..1."""
    return pixels.astype(np.float32) / np.float32(255)
