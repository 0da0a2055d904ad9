"""What Octavo knows about a model, a node or a tensor beside what ONNX can say.

It rides in onnx-ir's ``meta`` dictionaries, which are never written to a file. The keys are known here alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.core.recipe import Recipe
from octavo.errors import RecipeError

_MODEL = "octavo.annotations"
_UNIT = "octavo.unit"
_NARROW = "octavo.narrow"
_TYPED = "octavo.typed"


@dataclass(frozen=True)
class ModelAnnotations:
    """What is known about a model."""

    path: Path | None = None  # the file that it was loaded from
    files: frozenset[Path] = frozenset()  # every file that its weights are read from
    op_types: Mapping[str, str] = field(default_factory=dict)  # of its nodes, by name, before preparation
    one_graph: bool = False  # no node carries a graph, and none that is added later does


def of(model: ir.Model) -> ModelAnnotations:
    """Return what is known about a model."""
    found = model.meta.get(_MODEL)
    return found if isinstance(found, ModelAnnotations) else ModelAnnotations()


def annotate(model: ir.Model, **known: Any) -> None:
    """Set fields of a model's annotations."""
    model.meta[_MODEL] = replace(of(model), **known)


def describe(model: ir.Model) -> str:
    """Return the model's name for messages: its file if it came from one, else its graph's name."""
    path = of(model).path
    return str(path) if path is not None else f"The model {model.graph.name or '(unnamed)'!r}"


def unit(node: ir.Node) -> str | None:
    """Return ``"<operator>:<last node>"`` where the runtime runs a node with others as one operator."""
    found = node.meta.get(_UNIT)
    return found if isinstance(found, str) else None


def mark_unit(node: ir.Node, name: str) -> None:
    """Say that a node is a part of a unit."""
    node.meta[_UNIT] = name


def narrow(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the half-precision or double tensor that an initializer's float32 content is computed from."""
    wide, tensor = value.meta.get(_NARROW, (None, None))
    return tensor if wide is not None and value.const_value is wide else None


def set_narrow(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Note what the content that an initializer has now is computed from."""
    value.meta[_NARROW] = (value.const_value, tensor)


def is_typed(tensor: ir.TensorProtocol) -> bool:
    """Whether protobuf gets a tensor's content in the field of its type rather than as bytes."""
    return bool(tensor.meta) and _TYPED in tensor.meta


def set_typed(tensor: ir.TensorProtocol) -> None:
    """Let protobuf hold a tensor's content in the field of its type, where people look for it."""
    tensor.meta[_TYPED] = True


# ---- The recipe that a model was quantized by, kept in the metadata of the model itself
#
# ``compare`` starts its proposals from it. A model file may come from anybody: a text that is not a recipe
# counts as none.

KEY = "octavo.recipe"
_MAX_CHARACTERS = 1 << 16  # a recipe with overrides for every tensor is not worth its place in the model


def record_recipe(model: ir.Model, recipe: Recipe) -> None:
    """Write the recipe into the model; patterns that are functions can't be written, and nothing is then."""
    model.metadata_props.pop(KEY, None)
    try:
        text = json.dumps(recipe.to_dict(), ensure_ascii=False, separators=(",", ":"))
    except RecipeError:
        return
    if len(text) <= _MAX_CHARACTERS:
        model.metadata_props[KEY] = text


def recorded_recipe(model: ir.Model) -> Recipe | None:
    """Return the recipe that the model carries, if it carries one."""
    text = model.metadata_props.get(KEY)
    if not text or len(text) > _MAX_CHARACTERS:
        return None
    try:
        return Recipe.from_dict(json.loads(text))
    except (RecipeError, ValueError, RecursionError):
        return None
