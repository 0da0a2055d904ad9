"""A user's settings for single tensors, laid over the entries of a plan."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable
from dataclasses import replace

import onnx_ir as ir

from octavo.core.plan import GRAPH_OUTPUT, Derived, Dynamic, Entry, Key, Shared
from octavo.core.recipe import Override, Placement, Recipe
from octavo.errors import RecipeError, closest
from octavo.model.graph import query
from octavo.planning.selection import check_tries

_SIGNS = frozenset("*?[")  # of patterns


def kept_in_float(recipe: Recipe, model: ir.Model) -> dict[str, str]:
    """Return the tensors that overrides keep float, with the reason that the plan gives for it."""
    found: dict[str, str] = {}
    values = query.values(model) if recipe.overrides else {}
    check_tries(sum(_is_pattern(one.tensor) for one in recipe.overrides), len(values), "tensors")
    for override in recipe.overrides:
        if not override.keep_float:
            continue
        if override.consumers is not None:
            raise RecipeError(
                f"Override of {override.tensor!r}: keep_float holds for all consumers of a tensor; leave"
                " consumers out, or exclude those nodes."
            )
        names = _names(override, values)
        if not names:
            raise _unknown(override, values)
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
    values = query.values(model) if recipe.overrides else {}
    entries, keys = dict(entries), _by_tensor(entries)
    for override in recipe.overrides:
        if override.keep_float:
            continue  # the planner went around these
        hits = [key for name in _names(override, keys) for key in keys[name]]
        if not hits:
            if listed and override.tensor in values:
                continue
            if _names(override, values):
                raise RecipeError(
                    f"Override of {override.tensor!r}: the tensor exists but is not quantized here;"
                    " include the node that reads or makes it first."
                )
            raise _unknown(override, keys)
        if override.consumers is None:
            if listed:
                hits = [k for k in hits if not isinstance(entries[k], Derived | Shared | Dynamic)]
            entries |= {k: override.changed(k, entries[k]) for k in hits}
        else:
            entries = _converted(entries, override, hits, model)
            keys = _by_tensor(entries)
    return entries


def _by_tensor(entries: Iterable[Key]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = {}
    for key in entries:
        found.setdefault(key.tensor, []).append(key)
    return found


def _names(override: Override, names: Collection[str]) -> list[str]:
    """Return the tensors that an override means, of these."""
    if not _is_pattern(override.tensor):
        return [override.tensor] if override.tensor in names else []
    return [name for name in names if _fits(name, override)]


def _is_pattern(name: str) -> bool:
    return not _SIGNS.isdisjoint(name)


def _unknown(override: Override, names: Collection[str]) -> RecipeError:
    return RecipeError(
        f"Override of {override.tensor!r}: no such tensor{closest(override.tensor, names) or '.'}"
    )


def _fits(tensor: str, override: Override) -> bool:
    is_it = tensor == override.tensor
    return is_it or (_is_pattern(override.tensor) and fnmatch.fnmatchcase(tensor, override.tensor))


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
