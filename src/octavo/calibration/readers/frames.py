"""Geometry: how a picture of any size is brought to the size that a model takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

Size = tuple[int, int]
_GRAY = 114  # what YOLO models see around a picture
_MARGIN = 32  # pixels that EfficientNet-Lite leaves around its crop


def resize(image: Image.Image, size: Size) -> Image.Image:
    """To the size, whatever that does to the aspect."""
    from PIL.Image import Resampling

    return image.resize(size, Resampling.BILINEAR)


def resize_then_crop(image: Image.Image, size: Size) -> Image.Image:
    """The shorter side to 8/7 of the size, then the centre."""
    from PIL.Image import Resampling

    return _centre(image.resize(_covering(image.size, size), Resampling.BILINEAR), size)


def resize_by_area_then_crop(image: Image.Image, size: Size) -> Image.Image:
    """As above, each new pixel being the mean of those it covers."""
    from PIL.Image import Resampling

    return _centre(image.resize(_covering(image.size, size), Resampling.BOX), size)


def crop_then_resize(image: Image.Image, size: Size) -> Image.Image:
    """The centre, with a margin left around it, resized."""
    from PIL.Image import Resampling

    width, height = size
    crop = (
        round(width / (width + _MARGIN) * min(image.width, image.height * width / height)),
        round(height / (height + _MARGIN) * min(image.height, image.width * height / width)),
    )
    return _centre(image, (max(1, crop[0]), max(1, crop[1]))).resize(size, Resampling.BICUBIC)


def letterbox(image: Image.Image, size: Size) -> Image.Image:
    """The whole picture with its aspect kept, in the middle of a gray frame."""
    from PIL import Image

    inner, place = fitted(image.size, size)
    fill = _GRAY if image.mode == "L" else (_GRAY,) * len(image.getbands())
    canvas = Image.new(image.mode, size, fill)
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), place)
    return canvas


def fitted(picture: Size, size: Size) -> tuple[Size, Size]:
    """The size of a picture inside its frame, and its left upper corner there."""
    scale = min(size[0] / picture[0], size[1] / picture[1])
    inner = (max(1, round(picture[0] * scale)), max(1, round(picture[1] * scale)))
    return inner, ((size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2)


def most_pixels(picture: Size, size: Size) -> int:
    """No frame makes a larger picture on its way; the width is changed before the height."""
    width, height = _covering(picture, size)
    return width * max(height, picture[1])


def _covering(picture: Size, size: Size) -> Size:
    """The size with the picture's aspect of which the wanted size is 7/8."""
    scale = max(size[0] * 8 / 7 / picture[0], size[1] * 8 / 7 / picture[1])
    return max(size[0], round(picture[0] * scale)), max(size[1], round(picture[1] * scale))


def _centre(image: Image.Image, size: Size) -> Image.Image:
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    return image.crop((left, top, left + size[0], top + size[1]))
