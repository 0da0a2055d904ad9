"""The layout of an input that takes images: where its channels are, how many, and which size it takes."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.data.images.geometry import Size
from octavo.data.source import Specs
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

_CHANNELS = (3, 1, 4)  # of images, the most frequent number first


@dataclass(frozen=True)
class InputLayout:
    """Where an input has its channels, and how many."""

    spec: InputSpec
    channels: int
    first: bool

    @property
    def size(self) -> tuple[int | None, int | None]:
        """Width and height, where the model fixes them."""
        height, width = self.spec.shape[2:] if self.first else self.spec.shape[1:3]
        return _fixed(width), _fixed(height)


def _fixed(dim: int | str | None) -> int | None:
    return dim if isinstance(dim, int) and dim > 0 else None


def channel_axis(spec: InputSpec) -> int | None:
    """Return the axis of the channels in an input of four dimensions: the second or the last."""
    if len(spec.shape) != 4:
        return None
    likely = ((axis, count) for count in _CHANNELS for axis in (1, 3))
    return next((axis for axis, count in likely if spec.shape[axis] == count), None)


def layout_of(specs: Specs) -> InputLayout:
    """Return the layout of the model's one input of images."""
    if len(specs) != 1 or len(specs[0].shape) != 4 or specs[0].dtype.kind not in "fVui":
        listed = ", ".join(f"{spec.name!r} {list(spec.shape)}" for spec in specs)
        raise DataError(
            f"Images fill one input of four dimensions, and the model has {listed}; make the samples "
            "with a function of your own, and give it as module:function."
        )
    spec = specs[0]
    axis = channel_axis(spec)
    if axis is not None:
        return InputLayout(spec, int(spec.shape[axis] or 0), first=axis == 1)
    if _fixed(spec.shape[1]) is None:
        return InputLayout(spec, 3, first=True)
    raise DataError(
        f"The input {spec.name!r} has shape {list(spec.shape)}, which has no axis for the 1, "
        "3 or 4 channels of an image."
    )


def size_for(layout: InputLayout, given: Size | None, preset: Size | None) -> Size:
    """Return the size that the model fixes, else the one that was given, else the preset's own."""
    found = []
    for side, fixed, index in zip(("width", "height"), layout.size, (0, 1), strict=True):
        requested = given[index] if given is not None else None
        if fixed is not None and requested not in (None, fixed):
            raise DataError(
                f"The model takes images of {side} {fixed} for {layout.spec.name!r}, not {requested}; "
                "leave the size out."
            )
        chosen = fixed or requested or (preset[index] if preset is not None else None)
        if chosen is None:
            raise DataError(
                f"The model leaves the {side} of {layout.spec.name!r} open; give it, for example "
                "size=(224, 224)."
            )
        found.append(chosen)
    return found[0], found[1]
