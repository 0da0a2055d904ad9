"""The registry of preprocessing: a function takes a file name and ``(width, height)`` and returns an array.

Those that come with Octavo are a :class:`Preset`: how the image is brought to its size, and how its pixels
become values. Your own is any function, registered with one line::

    @octavo.preprocessing("mine")
    def mine(file, size):
        ...
        return array          # [channels, height, width], or with a batch axis of one

It must do what was done in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.data.images import geometry
from octavo.data.images.geometry import Size as Size
from octavo.data.images.image_decoding import MAX_PIXELS, open_image
from octavo.data.named_functions import is_named_function, named_function
from octavo.data.source import Array
from octavo.errors import DataError, RecipeError, closest

if TYPE_CHECKING:
    from PIL import Image

Preprocess: TypeAlias = Callable[[str, Size], Array]
Floats: TypeAlias = npt.NDArray[np.float32]
F = TypeVar("F", bound=Preprocess)

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, values 0 … 1
_PIXEL_MEAN = (123.68, 116.78, 103.94)  # of ImageNet, values 0 … 255


@dataclass(frozen=True)
class Preset:
    """A preprocessing in two parts: ``frame`` (geometry), and ``scale`` (values)."""

    summary: str
    frame: Callable[[Image.Image, Size], Image.Image]
    scale: Callable[[Floats], Floats]
    size: Size | None = None  # where neither the model nor the user says

    def pixels(self, file: str, size: Size, channels: int = 3) -> Array:
        """Return the framed image as bytes, ``[height, width, channels]``."""
        mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
        image = open_image(file, mode)
        if geometry.max_pixels(image.size, size) > MAX_PIXELS:
            raise DataError(
                f"{file} has {image.width} × {image.height} pixels, which is too narrow to be resized to "
                f"{size[0]} × {size[1]}; crop it, or leave it out."
            )
        try:
            return np.atleast_3d(np.asarray(self.frame(image, size)))
        except MemoryError as error:
            raise DataError(
                f"{file} at {size[0]} × {size[1]} takes more memory than there is; leave it out."
            ) from error

    def values(self, file: str, size: Size, channels: int = 3) -> Floats:
        """Return the input, ``[channels, height, width]``."""
        return self.scale(self.pixels(file, size, channels).astype(np.float32)).transpose(2, 0, 1)

    def __call__(self, file: str, size: Size) -> Floats:
        """Return the input as a batch of one, NCHW."""
        return self.values(file, size)[None]


def _per_channel(values: tuple[float, ...], pixels: Floats) -> Floats:
    """Return the values for red, green and blue, or their mean for gray."""
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
        geometry.resize_then_crop, _normalized, (224, 224),
    ),
    "imagenet-lite": Preset(
        "centre crop of size/(size + 32), bicubic, (x − 127) / 128 (EfficientNet-Lite)",
        geometry.crop_then_resize, _lite, (224, 224),
    ),
    "yolo-letterbox": Preset(
        "resized with its aspect ratio into a gray frame, values 0 … 1 (YOLO)",
        geometry.letterbox, _unit, (640, 640),
    ),
    "unit": Preset("resized, values 0 … 1", geometry.resize, _unit),
    "pixels": Preset("resized, values 0 … 255", geometry.resize, _as_they_are),
    "preprocess_method1": Preset(
        "shorter side to 8/7 of the size, centre crop, values −1 … 1 (MobileNet of MLPerf)",
        geometry.resize_then_crop, _signed, (224, 224),
    ),
    "preprocess_method2": Preset(
        "shorter side to 8/7 by area, centre crop, 0 … 255 minus the mean color (ResNet of MLPerf)",
        geometry.resize_by_area_then_crop, _centred, (224, 224),
    ),
}  # fmt: skip


def standardized(name: str | None, mean: Sequence[float], std: Sequence[float]) -> Preset:
    """Return the preset of a name with this mean and standard deviation in the place of its own.

    They are those of values of 0 … 1, or of 0 … 255 where one of them is above 2. Without a name images are
    resized.
    """
    base = PREPROCESSING.get(name or "unit")
    if not isinstance(base, Preset):
        raise RecipeError(
            f"mean and std can't be combined with the preprocessing {name!r}, which is a function; leave them"
            " out, or name one that comes with Octavo."
        )
    unit = 1.0 if max(map(abs, (*mean, *std))) > 2 else 255.0
    scale = partial(_standardize, unit=unit, mean=tuple(mean), std=tuple(std))
    return replace(base, summary=f"{name or 'unit'}, with another mean and deviation", scale=scale)


def _standardize(pixels: Floats, unit: float, mean: tuple[float, ...], std: tuple[float, ...]) -> Floats:
    values = pixels / np.float32(unit)
    for numbers in (mean, std):
        if len(numbers) not in (1, pixels.shape[-1]):
            raise DataError(
                f"There are {len(numbers)} numbers for the {pixels.shape[-1]} channels of an image; give one,"
                " or one for each channel."
            )
    return np.asarray((values - np.array(mean, np.float32)) / np.array(std, np.float32), np.float32)


def preprocessing(name: str) -> Callable[[F], F]:
    """Register a preprocessing function of a file name and ``(width, height)`` under a name."""
    if name in PREPROCESSING and isinstance(PREPROCESSING[name], Preset):
        raise DataError(f"The preprocessing {name!r} comes with Octavo; choose another name for yours.")

    def register(function: F) -> F:
        PREPROCESSING[name] = function
        return function

    return register


def find_preprocessing(given: str | Preprocess) -> Preprocess:
    """Return a preprocessing by its name, as ``module:function``, or the function itself."""
    if not isinstance(given, str):
        return given
    if given in PREPROCESSING:
        return PREPROCESSING[given]
    if is_named_function(given):
        return named_function(given)
    known = ", ".join(PREPROCESSING)
    raise RecipeError(
        f"There is no preprocessing {given!r}{closest(given, PREPROCESSING) or '.'} There are {known}, and "
        "module:function."
    )
