"""A user's settings for single tensors, laid over the entries of a plan."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from octavo.core.plan import GRAPH_OUTPUT, Derived, Dynamic, Entry, Key, Shared
from octavo.core.recipe import Override, Placement, Recipe
from octavo.errors import RecipeError, closest
from octavo.model.graph import query


def kept_in_float(recipe: Recipe, model: ir.Model) -> dict[str, str]:
    """Return the tensors that overrides keep float, with the reason that the plan gives for it."""
    found: dict[str, str] = {}
    for override in recipe.overrides:
        if not override.keep_float:
            continue
        if override.consumers is not None:
            raise RecipeError(
                f"Override of {override.tensor!r}: keep_float holds for all consumers of a tensor; leave"
                " consumers out, or exclude those nodes."
            )
        names = [name for name in query.values(model) if _fits(name, override)]
        if not names:
            raise _unknown(override, query.values(model))
        found.update(dict.fromkeys(names, f"an override of {override.tensor!r} keeps it in float"))
    return found


def preview(entry: Entry, tensor: str, recipe: Recipe) -> Entry:
    """Return what an entry of a tensor will be after the overrides that hold for all its consumers."""
    for override in recipe.overrides:
        if _fits(tensor, override) and not override.keep_float and override.consumers is None:
            entry = override.changed(Key(tensor), entry)
    return entry


def apply(entries: dict[Key, Entry], recipe: Recipe, model: ir.Model) -> dict[Key, Entry]:
    """Return the entries with all overrides applied, in their order; one that matches no tensor is an error.

    With the placement ``listed`` an override of a tensor that is not quantized or follows others is ignored.
    """
    listed = recipe.placement is Placement.LISTED
    for override in recipe.overrides:
        if override.keep_float:
            continue  # the planner went around these
        hits = [k for k in entries if _fits(k.tensor, override)]
        if not hits:
            if listed and override.tensor in query.values(model):
                continue
            if any(_fits(name, override) for name in query.values(model)):
                raise RecipeError(
                    f"Override of {override.tensor!r}: the tensor exists but is not quantized here;"
                    " include the node that reads or makes it first."
                )
            raise _unknown(override, {k.tensor for k in entries})
        if override.consumers is None:
            if listed:
                hits = [k for k in hits if not isinstance(entries[k], Derived | Shared | Dynamic)]
            found = set(hits)
            entries = {k: override.changed(k, e) if k in found else e for k, e in entries.items()}
        else:
            entries = _converted(entries, override, hits, model)
    return entries


def _unknown(override: Override, names: Collection[str]) -> RecipeError:
    return RecipeError(
        f"Override of {override.tensor!r}: no such tensor{closest(override.tensor, names) or '.'}"
    )


def _fits(tensor: str, override: Override) -> bool:
    return tensor == override.tensor or fnmatch.fnmatchcase(tensor, override.tensor)


def _converted(
    entries: dict[Key, Entry], override: Override, hits: list[Key], model: ir.Model
) -> dict[Key, Entry]:
    """Return the entries with conversions on the edges to some consumers; biases follow these."""
    reads = {node.name or "": {v.name for v in node.inputs if v is not None} for node in query.nodes(model)}
    reads[GRAPH_OUTPUT] = {value.name for value in model.graph.outputs}
    made: dict[Key, Entry] = {}
    for consumer in override.consumers or ():
        if consumer not in reads:
            raise RecipeError(
                f"Override of {override.tensor!r}: no node is named"
                f" {consumer!r}{closest(consumer, reads) or '.'}"
            )
        for tensor in dict.fromkeys(k.tensor for k in hits if k.tensor in reads[consumer]):
            edge = entries.get(Key(tensor, consumer), entries.get(Key(tensor)))
            while isinstance(edge, Shared):
                edge = entries.get(edge.key)
            if edge is not None:
                made[Key(tensor, consumer)] = override.changed(Key(tensor, consumer), edge)
        if not any(key.consumer == consumer for key in made):
            raise RecipeError(f"Override of {override.tensor!r}: {consumer!r} does not read it quantized.")
    return {key: _follows(key, entry, made) for key, entry in {**entries, **made}.items()}


def _follows(key: Key, entry: Entry, made: dict[Key, Entry]) -> Entry:
    """Return a bias entry derived from the edge into its layer, where an override has changed that."""
    if isinstance(entry, Derived):
        view = Key(entry.x[0], entry.w[1] if entry.w[1] is not None else key.consumer)
        if view in made:
            return replace(entry, x=(view.tensor, view.consumer))
    return entry
