"""Opening a picture safely: known formats, a bound on its size, upright, in the channels that are wanted."""

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
MOST_PIXELS = 80_000_000
_LONGEST = 1_000_000  # pixels of a side: Pillow's memory for a row has a size of its own
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM", "MPO")  # none that runs another program
# What decoders raise for files that are damaged or made to be.
_WRONG = (OSError, ValueError, SyntaxError, EOFError, TypeError, KeyError, IndexError, AttributeError,
          OverflowError, RuntimeError, struct.error, zlib.error)  # fmt: skip
_WIDE = 257  # 16 bits to 8: 65535 = 255 × 257


def pillow() -> Any:
    """The Pillow package, or a sentence that says how to get it."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise DataError("Reading pictures needs Pillow; pip install 'octavo[images]' brings it.") from error
    return PIL


def open_picture(path: str | Path, mode: str = "RGB") -> Image.Image:
    """The picture, turned as its camera says, in a mode of Pillow: RGB, L for gray, or RGBA."""
    package = pillow()
    try:
        with package.Image.open(path, formats=_FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise _too_large(path)
            if max(opened.size) > _LONGEST:
                raise DataError(
                    f"{path} has {opened.width} × {opened.height} pixels, which is no picture; leave it out."
                )
            upright: Image.Image = package.ImageOps.exif_transpose(opened)
            upright.load()
        return _converted(upright, mode, path)
    except package.Image.DecompressionBombError as error:
        raise _too_large(path) from error
    except MemoryError as error:
        raise DataError(f"The memory does not hold {path}; make it smaller, or leave it out.") from error
    except _WRONG as error:
        raise DataError(f"{path} can't be read as a picture: {error}.") from error


def _too_large(path: str | Path) -> DataError:
    return DataError(
        f"{path} has more than {MOST_PIXELS // 1_000_000} million pixels; make it smaller, or leave it out."
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
    """Sixteen bits as eight; Pillow's own conversion would cut off all that is above 255."""
    values = np.asarray(image)
    if values.max(initial=0) > 255:
        values = values // _WIDE
    narrow: Image.Image = pillow().Image.fromarray(values.clip(0, 255).astype(np.uint8))
    return narrow
