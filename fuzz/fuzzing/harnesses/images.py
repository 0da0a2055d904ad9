"""Images in the formats that are read; Pillow decodes them, Octavo has to answer for what it raises."""

from __future__ import annotations

import io
import warnings
from random import Random

import numpy as np

from fuzzing import guard
from fuzzing.mutations import raw
from octavo.data.readers.image_files import Images
from octavo.errors import OctavoError
from octavo.model.runtime.session import InputSpec

SCOPE = ("data/readers/image_files.py", "data/images/image_decoding.py",
         "data/images/preprocessing.py", "data/images/input_layout.py")  # fmt: skip
SECONDS = 20.0

_SPEC = [InputSpec("x", np.dtype(np.float32), (1, 3, 8, 8))]
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP")
_MODES = ("RGB", "L", "RGBA", "P", "I;16", "1")


def seeds() -> list[bytes]:
    """A small image in each format and mode; none where Pillow is not installed."""
    try:
        from PIL import Image
    except ImportError:
        return [b"P6 2 2 255\n" + bytes(12)]
    found = []
    pixels = np.arange(300, dtype=np.uint8).reshape(10, 10, 3)
    for kind in _FORMATS:
        for mode in _MODES:
            image = Image.fromarray(pixels)
            image = (
                Image.fromarray(pixels[..., 0].astype(np.uint16) * 200)
                if mode == "I;16"
                else image.convert(mode)
            )
            made = io.BytesIO()
            try:
                image.save(made, kind)
            except (OSError, ValueError):
                continue  # a mode that the format does not know
            found.append(made.getvalue())
    return found


def mutate(data: bytes, chance: Random) -> bytes:
    """Changed bytes, most of them in the header; numbers in either order."""
    if chance.random() < 0.6:
        head = chance.choice((32, 64, 128))
        return (raw.mutate(data[:head], chance) + data[head:])[: raw.MOST_BYTES]
    return raw.mutate(
        data, chance, [b"IHDR", b"IDAT", b"tRNS", b"PLTE", b"eXIf", b"\xff\xe1", b"\xff\xda", b"RIFF"]
    )


def one(data: bytes) -> None:
    """Make a sample of an image, as calibration does."""
    path = guard.folder() / "image.png"
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for preset in ("imagenet", "pixels"):
            try:
                list(Images((path,), preset, workers=0).for_inputs(_SPEC).portion())
            except OctavoError:
                continue
