"""The recipe that a model was quantized by, kept in the metadata of the model itself.

``compare`` starts its proposals from it. A model file may come from anybody: a text that is not a recipe
counts as none.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from octavo.core.recipe import Recipe
from octavo.errors import RecipeError

KEY = "octavo.recipe"
_MAX_CHARACTERS = 1 << 16  # a recipe with overrides for every tensor is not worth its place in the model


def record(model: ir.Model, recipe: Recipe) -> None:
    """Write the recipe into the model; patterns that are functions can't be written, and nothing is then."""
    model.metadata_props.pop(KEY, None)
    try:
        text = json.dumps(recipe.to_dict(), ensure_ascii=False, separators=(",", ":"))
    except RecipeError:
        return
    if len(text) <= _MAX_CHARACTERS:
        model.metadata_props[KEY] = text


def recorded(model: ir.Model) -> Recipe | None:
    """Return the recipe that the model carries, if it carries one."""
    text = model.metadata_props.get(KEY)
    if not text or len(text) > _MAX_CHARACTERS:
        return None
    try:
        return Recipe.from_dict(json.loads(text))
    except (RecipeError, ValueError, RecursionError):
        return None
