"""Pictures as feeds, and where each one lies in the model's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.readers import frames
from octavo.calibration.readers.images import Images, images
from octavo.calibration.readers.picture import SUFFIXES, pillow
from octavo.calibration.readers.preprocessing import Preprocess, Preset, Size, find_preprocessing
from octavo.errors import DataError, ModelError, RecipeError
from octavo.evaluation.batching import padded
from octavo.evaluation.boxes import Frame
from octavo.model.session import InputSpec

__all__ = ["SUFFIXES", "Described", "Pictures", "described"]

Array = npt.NDArray[Any]
_SIDEWAYS = (5, 6, 7, 8)  # orientations in which a camera swaps width and height
_ORIENTATION = 274


@dataclass(frozen=True)
class Described:
    """What ``octavo.images`` says of pictures."""

    place: Any
    preprocess: str | Preprocess | None
    size: Size | None


def described(data: Any, preprocess: str | Preprocess | None, size: Size | None) -> Described:
    """The place of the data, and how its pictures become inputs, from either."""
    if not isinstance(data, Images):
        return Described(data, preprocess, size)
    return Described(data.files, data.preprocess or preprocess, data.size or size)


@dataclass(frozen=True)
class Pictures:
    """How the pictures of a batch become a feed; ``shapes`` are inputs that take (height, width)."""

    spec: InputSpec
    preprocess: str | Preprocess | None
    size: Size | None = None
    shapes: tuple[InputSpec, ...] = ()

    @classmethod
    def of(
        cls, specs: Sequence[InputSpec], preprocess: str | Preprocess | None, size: Size | None = None
    ) -> Pictures:
        """For a model with these inputs."""
        found = [spec for spec in specs if len(spec.shape) == 4]
        others = [spec for spec in specs if len(spec.shape) != 4]
        if len(found) != 1 or any(
            "shape" not in s.name.lower() and "size" not in s.name.lower() for s in others
        ):
            listed = ", ".join(f"{spec.name!r} {list(spec.shape)}" for spec in specs)
            raise ModelError(
                f"Pictures fill one input of four dimensions, and the model has {listed}; give feeds with "
                "their labels instead, or choose another task."
            )
        spec = replace(found[0], shape=(None, *found[0].shape[1:]))
        function = find_preprocessing(preprocess) if preprocess is not None else None
        # A name is found again in a worker, unless the user registered it in this process.
        given = preprocess if function is None or isinstance(function, Preset) else function
        return cls(spec, given, size, tuple(others))

    def feed(self, paths: Sequence[Path], fixed: int | None) -> tuple[dict[str, Array], list[Frame]]:
        """The model's inputs, and a frame for each picture."""
        source = images(list(paths), self.preprocess, size=self.size, workers=0).for_inputs([self.spec])
        made = [sample[self.spec.name] for sample in source.portion()]
        try:
            pixels = np.concatenate(made)
        except ValueError as error:
            raise DataError(
                f"The preprocessing gives arrays of different shapes ({error}); evaluate one by one: batch=1."
            ) from error
        placed = [self.frame(path, pixels) for path in paths]
        feed = {self.spec.name: padded(pixels, fixed)}
        for spec in self.shapes:
            sizes = np.array([[frame.height, frame.width] for frame in placed]).astype(spec.dtype)
            feed[spec.name] = padded(sizes, fixed) if len(spec.shape) == 2 else sizes[0]
        return feed, placed

    def frame(self, path: Path, pixels: Array) -> Frame:
        """Where the picture lies in the input."""
        height, width = pixels.shape[2:] if pixels.shape[1] in (1, 3, 4) else pixels.shape[1:3]
        own = picture_size(path)
        function = find_preprocessing(self.preprocess) if self.preprocess is not None else None
        frame = function.frame if isinstance(function, Preset) else None
        if frame is frames.letterbox:
            _, place = frames.fitted(own, (width, height))
            scale = min(width / own[0], height / own[1])
            return Frame(*own, (scale, scale), (float(place[0]), float(place[1])), (width, height))
        stretch = (width / own[0], height / own[1])
        return Frame(*own, stretch, (0.0, 0.0), (width, height))

    def check_whole(self) -> None:
        """Raise where the preprocessing cuts pictures, which would move every box."""
        function = find_preprocessing(self.preprocess) if self.preprocess is not None else None
        if isinstance(function, Preset) and function.frame not in (frames.letterbox, frames.resize):
            raise RecipeError(
                f"The preprocessing {self.preprocess!r} cuts pictures, so that boxes can't be placed; use "
                "'yolo-letterbox', 'unit' or 'pixels' for detection."
            )


def picture_size(path: Path) -> Size:
    """Width and height of a picture as it is seen, from its header alone."""
    package = pillow()
    try:
        with package.Image.open(path) as opened:
            width, height = opened.size
            turned = opened.getexif().get(_ORIENTATION) in _SIDEWAYS
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path} can't be read as a picture: {error}.") from error
    return (height, width) if turned else (width, height)
