"""The registry of preprocessing: a function takes a file name and ``(width, height)`` and returns an array.

Those that come with Octavo are a :class:`Preset`: how the picture is brought to its size, and how its pixels
become values. Your own is any function, registered with one line::

    @octavo.preprocessing("mine")
    def mine(file, size):
        ...
        return array          # [channels, height, width], or with a batch axis of one

What counts is that it does what was done in training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.calibration.readers import frames
from octavo.calibration.readers.calls import is_call, named
from octavo.calibration.readers.picture import MOST_PIXELS, open_picture
from octavo.calibration.readers.source import Array
from octavo.errors import DataError, closest

if TYPE_CHECKING:
    from PIL import Image

Size: TypeAlias = tuple[int, int]
Preprocess: TypeAlias = Callable[[str, Size], Array]
Floats: TypeAlias = npt.NDArray[np.float32]
F = TypeVar("F", bound=Preprocess)

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, values 0 … 1
_PIXEL_MEAN = (123.68, 116.78, 103.94)  # of ImageNet, values 0 … 255


@dataclass(frozen=True)
class Preset:
    """A preprocessing in two parts: the frame (geometry), and the scale (values)."""

    summary: str
    frame: Callable[[Image.Image, Size], Image.Image]
    scale: Callable[[Floats], Floats]
    size: Size | None = None  # where neither the model nor the user says

    def pixels(self, file: str, size: Size, channels: int = 3) -> Array:
        """The framed picture as bytes, ``[height, width, channels]``."""
        mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        picture = open_picture(file, mode)
        if frames.most_pixels(picture.size, size) > MOST_PIXELS:
            raise DataError(
                f"{file} has {picture.width} × {picture.height} pixels, which is too narrow to be brought to "
                f"{size[0]} × {size[1]}; crop it, or leave it out."
            )
        try:
            return np.atleast_3d(np.asarray(self.frame(picture, size)))
        except MemoryError as error:
            raise DataError(
                f"The memory does not hold {file} at {size[0]} × {size[1]}; make it smaller, or leave it out."
            ) from error

    def values(self, file: str, size: Size, channels: int = 3) -> Floats:
        """The input, ``[channels, height, width]``."""
        return self.scale(self.pixels(file, size, channels).astype(np.float32)).transpose(2, 0, 1)

    def __call__(self, file: str, size: Size) -> Floats:
        """The input as a batch of one, NCHW."""
        return self.values(file, size)[None]


def _per_channel(values: tuple[float, ...], pixels: Floats) -> Floats:
    """Values for red, green and blue, or their mean for gray."""
    found = np.array(values, np.float32)
    return found if pixels.shape[-1] == len(values) else found.mean(keepdims=True)


def _normalized(pixels: Floats) -> Floats:
    unit = pixels / np.float32(255)
    return (unit - _per_channel(_MEAN, pixels)) / _per_channel(_DEVIATION, pixels)


def _lite(pixels: Floats) -> Floats:
    return (pixels - np.float32(127)) / np.float32(128)


def _unit(pixels: Floats) -> Floats:
    return pixels / np.float32(255)


def _as_they_are(pixels: Floats) -> Floats:
    return pixels


def _signed(pixels: Floats) -> Floats:
    return pixels / np.float32(127.5) - np.float32(1)


def _centred(pixels: Floats) -> Floats:
    return pixels - _per_channel(_PIXEL_MEAN, pixels)


PREPROCESSING: dict[str, Preprocess] = {
    "imagenet": Preset(
        "shorter side to 8/7 of the size, centre crop, ImageNet mean and deviation (torchvision)",
        frames.resize_then_crop, _normalized, (224, 224),
    ),
    "imagenet-lite": Preset(
        "centre crop of size/(size + 32), bicubic, (x − 127) / 128 (EfficientNet-Lite)",
        frames.crop_then_resize, _lite, (224, 224),
    ),
    "yolo-letterbox": Preset(
        "fitted into a gray frame with its aspect kept, values 0 … 1 (YOLO)",
        frames.letterbox, _unit, (640, 640),
    ),
    "unit": Preset("resized, values 0 … 1", frames.resize, _unit),
    "pixels": Preset("resized, values 0 … 255 as they are", frames.resize, _as_they_are),
    "preprocess_method1": Preset(
        "shorter side to 8/7 of the size, centre crop, values −1 … 1 (MobileNet of MLPerf)",
        frames.resize_then_crop, _signed, (224, 224),
    ),
    "preprocess_method2": Preset(
        "shorter side to 8/7 by area, centre crop, 0 … 255 minus the mean color (ResNet of MLPerf)",
        frames.resize_by_area_then_crop, _centred, (224, 224),
    ),
}  # fmt: skip


def preprocessing(name: str) -> Callable[[F], F]:
    """Register the function below under a name: it takes a file name and ``(width, height)``."""
    if name in PREPROCESSING and isinstance(PREPROCESSING[name], Preset):
        raise DataError(f"The preprocessing {name!r} comes with Octavo; choose another name for yours.")

    def register(function: F) -> F:
        PREPROCESSING[name] = function
        return function

    return register


def find_preprocessing(given: str | Preprocess) -> Preprocess:
    """A preprocessing by its name, as ``module:function``, or the function itself."""
    if not isinstance(given, str):
        return given
    if given in PREPROCESSING:
        return PREPROCESSING[given]
    if is_call(given):
        return named(given)
    known = ", ".join(PREPROCESSING)
    raise DataError(
        f"There is no preprocessing {given!r}{closest(given, PREPROCESSING) or ';'} There are {known}, and "
        "module:function."
    )
