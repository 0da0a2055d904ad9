"""Images as feeds, and where each image lies in the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.data.images import geometry
from octavo.data.images.image_decoding import SUFFIXES, opened_file, pillow
from octavo.data.images.preprocessing import Preprocess, Preset, Size, find_preprocessing
from octavo.data.readers.image_files import Images, images
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.detection.boxes import Frame
from octavo.evaluation.task import Array, pad_rows
from octavo.model.runtime.session import InputSpec

__all__ = ["SUFFIXES", "ImageFeeds", "ImageLocation", "image_source"]

_ORIENTATION = 274  # the EXIF tag
_SIDEWAYS = (5, 6, 7, 8)  # its values for which the camera swapped width and height


@dataclass(frozen=True)
class ImageLocation:
    """Where images are, and how they become model inputs."""

    location: Any
    preprocess: str | Preprocess | None
    size: Size | None


def image_source(data: Any, preprocess: str | Preprocess | None, size: Size | None) -> ImageLocation:
    """Return where the images are; what ``octavo.images`` says of them wins over the options."""
    if not isinstance(data, Images):
        return ImageLocation(data, preprocess, size)
    return ImageLocation(data.files, data.preprocess or preprocess, data.size or size)


@dataclass(frozen=True)
class ImageFeeds:
    """How the images of a batch become a feed; ``shapes`` are inputs that take (height, width)."""

    spec: InputSpec
    preprocess: str | Preprocess | None
    size: Size | None = None
    shapes: tuple[InputSpec, ...] = ()

    @classmethod
    def of(
        cls, specs: Sequence[InputSpec], preprocess: str | Preprocess | None, size: Size | None = None
    ) -> ImageFeeds:
        """Return the feeds for a model with these inputs."""
        found = [spec for spec in specs if len(spec.shape) == 4]
        others = [spec for spec in specs if len(spec.shape) != 4]
        if len(found) != 1 or any(
            "shape" not in s.name.lower() and "size" not in s.name.lower() for s in others
        ):
            listed = ", ".join(f"{spec.name!r} {list(spec.shape)}" for spec in specs)
            raise ModelError(
                f"Images need one input of four dimensions, but the model has {listed}; give feeds with "
                "their labels instead, or choose another task."
            )
        spec = replace(found[0], shape=(None, *found[0].shape[1:]))
        function = find_preprocessing(preprocess) if preprocess is not None else None
        # A worker finds a preset by its name, but not what the user registered in this process.
        given = preprocess if function is None or isinstance(function, Preset) else function
        return cls(spec, given, size, tuple(others))

    def feed(self, paths: Sequence[Path], fixed: int | None) -> tuple[dict[str, Array], list[Frame]]:
        """Return the model's inputs, and a frame for each image."""
        source = images(list(paths), self.preprocess, size=self.size, workers=0).for_inputs([self.spec])
        made = [sample[self.spec.name] for sample in source.portion()]
        try:
            pixels = np.concatenate(made)
        except ValueError as error:
            raise DataError(
                f"The preprocessing returns arrays of different shapes ({error}); evaluate with batch=1."
            ) from error
        placed = [self.frame(path, pixels) for path in paths]
        feed = {self.spec.name: pad_rows(pixels, fixed)}
        for spec in self.shapes:
            sizes = np.array([[frame.height, frame.width] for frame in placed]).astype(spec.dtype)
            feed[spec.name] = pad_rows(sizes, fixed) if len(spec.shape) == 2 else sizes[0]
        return feed, placed

    def frame(self, path: Path, pixels: Array) -> Frame:
        """Return where the image lies in the input."""
        height, width = pixels.shape[2:] if pixels.shape[1] in (1, 3, 4) else pixels.shape[1:3]
        own = image_size(path)
        function = find_preprocessing(self.preprocess) if self.preprocess is not None else None
        frame = function.frame if isinstance(function, Preset) else None
        if frame is geometry.letterbox:
            _, place = geometry.fitted(own, (width, height))
            scale = min(width / own[0], height / own[1])
            return Frame(*own, (scale, scale), (float(place[0]), float(place[1])), (width, height))
        stretch = (width / own[0], height / own[1])
        return Frame(*own, stretch, (0.0, 0.0), (width, height))

    def check_whole(self) -> None:
        """Raise where the preprocessing crops images, which would move every box."""
        function = find_preprocessing(self.preprocess) if self.preprocess is not None else None
        if isinstance(function, Preset) and function.frame not in (geometry.letterbox, geometry.resize):
            raise RecipeError(
                f"The preprocessing {self.preprocess!r} crops images, so boxes can't be mapped back; use "
                "'yolo-letterbox', 'unit' or 'pixels' for detection."
            )


def image_size(path: Path) -> Size:
    """Return width and height of an image as it is displayed, from its header alone."""
    package = pillow()
    try:
        with opened_file(path) as opened:
            width, height = opened.size
            turned = opened.getexif().get(_ORIENTATION) in _SIDEWAYS
    except (OSError, ValueError, SyntaxError, package.Image.DecompressionBombError) as error:
        raise DataError(f"{path} can't be read as an image: {error}.") from error
    return (height, width) if turned else (width, height)
