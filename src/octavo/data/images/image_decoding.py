"""Decoding an image safely: known formats, a bound on its size, upright, in the requested channels."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm")
MAX_PIXELS = 80_000_000  # of an image, which take 240 MB once decoded
_MAX_SIDE = 1_000_000  # pixels: Pillow's memory for a row has a size of its own
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")  # none that runs another program
# What decoders raise for damaged and hostile files.
_WRONG = (OSError, ValueError, SyntaxError, EOFError, TypeError, KeyError, IndexError, AttributeError,
          OverflowError, RuntimeError, struct.error, zlib.error)  # fmt: skip
_TO_8_BITS = 257  # divides 16 bits to 8: 65535 = 255 × 257


def pillow() -> Any:
    """Return the Pillow package; where it is missing, the error says how to install it."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise DataError("Reading images needs Pillow: pip install 'octavo[images]'.") from error
    return PIL


def opened_file(path: str | Path) -> Any:
    """Open an image file without decoding it: a regular file, and of the formats that are read."""
    if Path(path).exists() and not Path(path).is_file():
        raise DataError(f"{path} can't be read as an image: it is not a regular file.")
    return pillow().Image.open(path, formats=_FORMATS)


def open_image(path: str | Path, mode: str = "RGB") -> Image.Image:
    """Return the image, turned as its camera says, in a mode of Pillow: RGB, L for gray, or RGBA."""
    package = pillow()
    try:
        with opened_file(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise _too_large(path)
            if max(opened.size) > _MAX_SIDE:
                raise DataError(
                    f"{path} has {opened.width} × {opened.height} pixels, which can't be decoded; leave it "
                    "out."
                )
            upright: Image.Image = package.ImageOps.exif_transpose(opened)
            upright.load()
        return _converted(upright, mode, path)
    except package.Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except MemoryError as error:
        raise DataError(
            f"There is not enough memory to decode {path}; make it smaller, or leave it out."
        ) from error
    except package.UnidentifiedImageError as error:
        kinds = ", ".join(_FORMATS)
        is_image = Path(path).suffix.lower() in SUFFIXES
        advice = "replace or remove it" if is_image else "arrays need no preprocess"
        raise DataError(
            f"{path} can't be read as an image: it is damaged, or none of {kinds}; {advice}."
        ) from error
    except _WRONG as error:
        raise DataError(f"{path} can't be read as an image: {error}.") from error


def _too_large(path: str | Path) -> DataError:
    return DataError(
        f"{path} has more than {MAX_PIXELS // 1_000_000} million pixels; make it smaller, or leave it out."
    )


def _converted(image: Image.Image, mode: str, path: str | Path) -> Image.Image:
    if image.mode == "F":
        raise DataError(f"{path} holds pixels of 32-bit floats; save it with 8 or 16 bits for each channel.")
    if image.mode.startswith("I"):
        image = _narrowed(image)
    if image.mode in ("P", "PA", "LA") and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else image.convert(mode)


def _narrowed(image: Image.Image) -> Image.Image:
    """Return 16 bits as 8; Pillow's own conversion would cut off all that is above 255."""
    values = np.asarray(image)
    if values.max(initial=0) > 255:
        values = values // _TO_8_BITS
    narrow: Image.Image = pillow().Image.fromarray(values.clip(0, 255).astype(np.uint8))
    return narrow
