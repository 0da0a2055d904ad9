"""Annotations in COCO's JSON format: pictures, objects, categories."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import DataError, RecipeError, closest
from octavo.evaluation.labels import read_json


@dataclass(frozen=True, eq=False)
class Annotations:
    """A COCO annotations file."""

    path: Path
    content: Mapping[str, Any] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Annotations:
        """Read and look whether it has the parts that are needed."""
        content = read_json(path, "annotations file")
        for key in ("images", "annotations", "categories"):
            if not isinstance(content, Mapping) or not isinstance(content.get(key), list):
                raise DataError(f"{path} has no list {key!r}; give annotations in COCO's JSON format.")
        try:
            for picture in content["images"]:
                int(picture["id"]), str(picture["file_name"])
            for one in content["annotations"]:
                int(one["image_id"]), int(one["category_id"])
                if len(one["bbox"]) != 4 or not all(math.isfinite(float(side)) for side in one["bbox"]):
                    raise ValueError(f"a bbox is four numbers, not {str(one['bbox'])[:80]}")
            for category in content["categories"]:
                int(category["id"]), str(category["name"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{path} is no COCO annotations file: {type(error).__name__} {error}.") from error
        return cls(path, content)

    @property
    def categories(self) -> dict[int, str]:
        """Names by number, in the order of the numbers."""
        found = {int(one["id"]): str(one["name"]) for one in self.content["categories"]}
        return dict(sorted(found.items()))

    @property
    def pictures(self) -> list[tuple[str, int]]:
        """File names and numbers of the pictures."""
        return [(str(one["file_name"]), int(one["id"])) for one in self.content["images"]]

    def filtered(self, wanted: Sequence[str | int] | None) -> list[int]:
        """The numbers of the categories that were asked for by name or number; all without a wish."""
        known = self.categories
        if wanted is None:
            return list(known)
        by_name = {name: number for number, name in known.items()}
        found = []
        for one in wanted:
            number = by_name.get(str(one))
            if number is None and str(one).isdigit() and int(one) in known:
                number = int(one)
            if number is None:
                raise RecipeError(
                    f"{self.path} has no category {one!r}{closest(str(one), by_name) or '; see its list.'}"
                )
            found.append(number)
        return sorted(found)
