"""Annotations in COCO's JSON format, and the class numbers of a detector as category ids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, RecipeError, closest
from octavo.evaluation.label_files import read_json

# COCO gives its 80 classes ids from 1 to 90; these ids are not used in any image.
_UNUSED_IDS = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
COCO_80 = tuple(number for number in range(1, 91) if number not in _UNUSED_IDS)
_NUMBERINGS = ("auto", "order", "id")
_DECODERS_WITH_IDS = ("ssd",)  # whose models return category ids


@dataclass(frozen=True, eq=False)
class Annotations:
    """The content of a COCO annotations file."""

    path: Path
    content: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Annotations:
        """Read the file, and raise where a part that is needed is missing or malformed."""
        content = read_json(path, "annotations file")
        for key in ("images", "annotations", "categories"):
            if not isinstance(content, Mapping) or not isinstance(content.get(key), list):
                raise DataError(f"{path} has no list {key!r}; give annotations in COCO's JSON format.")
        try:
            for image in content["images"]:
                int(image["id"]), str(image["file_name"])
            for one in content["annotations"]:
                int(one["image_id"]), int(one["category_id"])
                if len(one["bbox"]) != 4 or not all(math.isfinite(float(side)) for side in one["bbox"]):
                    raise ValueError(f"a bbox is four numbers, not {str(one['bbox'])[:80]}")
            for category in content["categories"]:
                int(category["id"]), str(category["name"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"{path} is not a COCO annotations file: {type(error).__name__} {error}."
            ) from error
        return cls(path, content)

    @property
    def categories(self) -> dict[int, str]:
        """Return the names of categories by id, in the order of the ids."""
        found = {int(one["id"]): str(one["name"]) for one in self.content["categories"]}
        return dict(sorted(found.items()))

    @property
    def images(self) -> list[tuple[str, int]]:
        """File names and ids of the images."""
        return [(str(one["file_name"]), int(one["id"])) for one in self.content["images"]]

    def category_ids(self, chosen: Sequence[str | int] | None) -> list[int]:
        """Return the ids of categories given by name or id; all of them for None."""
        known = self.categories
        if chosen is None:
            return list(known)
        by_name = {name: number for number, name in known.items()}
        found = []
        for one in chosen:
            number = by_name.get(str(one))
            if number is None and str(one).isdigit() and int(one) in known:
                number = int(one)
            if number is None:
                hint = closest(str(one), by_name) or "; see the list 'categories' in it."
                raise RecipeError(f"{self.path} has no category {one!r}{hint}")
            found.append(number)
        return sorted(found)


@dataclass(frozen=True)
class Numbering:
    """What class numbers mean: ``order``, the position among the categories; ``id``, the category's id."""

    kind: str
    categories: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in _NUMBERINGS:
            raise RecipeError(f"There is no numbering {self.kind!r}; choose {', '.join(_NUMBERINGS)}.")

    def of(self, classes: npt.NDArray[np.int64], count: int | None, decoder: str) -> npt.NDArray[np.float64]:
        """Return category ids, -1 for classes that the annotations do not have."""
        if self.kind == "id" or (self.kind == "auto" and decoder in _DECODERS_WITH_IDS):
            found = classes
        else:
            table = np.array(self._table(count, int(classes.max(initial=-1))))
            found = table[classes] if classes.size else classes
        return np.where(np.isin(found, self.categories), found, -1).astype(np.float64)

    def _table(self, count: int | None, highest: int) -> tuple[int, ...]:
        own = tuple(sorted(self.categories))
        if count == len(own) or (count is None and highest < len(own)):
            return own
        if self.kind == "auto" and count in (None, len(COCO_80)) and set(own) <= set(COCO_80):
            return COCO_80
        raise DataError(
            f"The model distinguishes {count or highest + 1} classes, but the annotations have {len(own)} "
            "categories; give annotations with all categories of the model, or say that its class numbers "
            "are category ids: numbering='id'."
        )
