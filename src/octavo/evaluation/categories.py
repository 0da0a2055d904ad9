"""The class numbers of a detector as the category numbers of annotations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.errors import DataError, RecipeError

# COCO numbers its 80 classes from 1 to 90; these numbers are in no picture.
_UNUSED = frozenset((12, 26, 29, 30, 45, 66, 68, 69, 71, 83))
COCO_80 = tuple(number for number in range(1, 91) if number not in _UNUSED)
_WORDS = ("auto", "order", "id")
_BY_ID = ("ssd",)


@dataclass(frozen=True)
class Numbering:
    """What class numbers mean: ``order``, the place among the categories; ``id``, the category's number."""

    kind: str
    categories: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.kind not in _WORDS:
            raise RecipeError(f"There is no numbering {self.kind!r}; choose {', '.join(_WORDS)}.")

    def of(self, classes: npt.NDArray[np.int64], count: int | None, decoder: str) -> npt.NDArray[np.float64]:
        """Category numbers, -1 for classes that the annotations do not have."""
        if self.kind == "id" or (self.kind == "auto" and decoder in _BY_ID):
            known = np.isin(classes, self.categories)
            return np.where(known, classes, -1).astype(np.float64)
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
            f"The model tells {count or highest + 1} classes apart, and the annotations have {len(own)} "
            "categories; give annotations with all categories of the model, or say that its class numbers "
            "are category numbers: numbering='id'."
        )
