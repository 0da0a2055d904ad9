"""Geometry: how an image of any size is brought to the size that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
_GRAY = 114  # the value that YOLO models see around an image
_MARGIN = 32  # pixels that EfficientNet-Lite leaves around its crop


def resize(image: Image.Image, size: Size) -> Image.Image:
    """Resize to the size, whatever that does to the aspect."""
    from PIL.Image import Resampling

    return image.resize(size, Resampling.BILINEAR)


def resize_then_crop(image: Image.Image, size: Size) -> Image.Image:
    """Resize the shorter side to 8/7 of the size, then crop the centre."""
    from PIL.Image import Resampling

    return _centre(image.resize(_covering(image.size, size), Resampling.BILINEAR), size)


def resize_by_area_then_crop(image: Image.Image, size: Size) -> Image.Image:
    """Do the same with each new pixel the mean of those it covers."""
    from PIL.Image import Resampling

    return _centre(image.resize(_covering(image.size, size), Resampling.BOX), size)


def crop_then_resize(image: Image.Image, size: Size) -> Image.Image:
    """Crop the centre, with a margin left around it, and resize it."""
    from PIL.Image import Resampling

    width, height = size
    crop = (
        round(width / (width + _MARGIN) * min(image.width, image.height * width / height)),
        round(height / (height + _MARGIN) * min(image.height, image.width * height / width)),
    )
    return _centre(image, (max(1, crop[0]), max(1, crop[1]))).resize(size, Resampling.BICUBIC)


def letterbox(image: Image.Image, size: Size) -> Image.Image:
    """Put the whole image, with its aspect kept, in the middle of a gray frame."""
    from PIL import Image

    inner, corner = fitted(image.size, size)
    fill = _GRAY if image.mode == "L" else (_GRAY,) * len(image.getbands())
    canvas = Image.new(image.mode, size, fill)
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), corner)
    return canvas


def fitted(image: Size, size: Size) -> tuple[Size, Size]:
    """Return the size of an image inside its frame, and its left upper corner there."""
    scale = min(size[0] / image[0], size[1] / image[1])
    inner = (max(1, round(image[0] * scale)), max(1, round(image[1] * scale)))
    return inner, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2)


def max_pixels(image: Size, size: Size) -> int:
    """Return the pixels of the largest image on the way: the width is changed before the height."""
    width, height = _covering(image, size)
    return width * max(height, image[1])


def _covering(image: Size, size: Size) -> Size:
    """Return the size with the image's aspect of which the requested size is 7/8."""
    scale = max(size[0] * 8 / 7 / image[0], size[1] * 8 / 7 / image[1])
    return max(size[0], round(image[0] * scale)), max(size[1], round(image[1] * scale))


def _centre(image: Image.Image, size: Size) -> Image.Image:
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))
