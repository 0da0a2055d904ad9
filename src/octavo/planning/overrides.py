"""A user's settings for single tensors, laid over the entries of a plan."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import onnx_ir as ir

from octavo.core.plan import Bounded, Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Shared
from octavo.core.recipe import Override, Recipe
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError, closest


def apply(entries: dict[Key, Entry], recipe: Recipe, model: ir.Model) -> dict[Key, Entry]:
    """The entries with all overrides applied, in their order; one that fits no tensor is an error."""
    for override in recipe.overrides:
        hits = [k for k in entries if _fits(k, override)]
        if not hits:
            names = {k.tensor for k in entries}
            if any(fnmatch.fnmatchcase(n, override.tensor) for n in _names(model)):
                raise RecipeError(
                    f"Override of {override.tensor!r}: the tensor exists but is not quantized here;"
                    " include the node that reads or makes it first."
                )
            raise RecipeError(f"Override of {override.tensor!r}: no such tensor{closest(override.tensor, names) or '.'}")
        if override.keep_float:
            entries = _without(entries, hits)
            continue
        if override.readers is not None:
            entries.update(_conversions(entries, override))
            continue
        entries = {k: _changed(e, override) if k in hits else e for k, e in entries.items()}
    return entries


def _fits(key: Key, override: Override) -> bool:
    return key.tensor == override.tensor or fnmatch.fnmatchcase(key.tensor, override.tensor)


def _names(model: ir.Model) -> set[str]:
    names = {v.name or "" for v in model.graph.inputs}
    names.update(model.graph.initializers)
    names.update(v.name or "" for node in model.graph.all_nodes() for v in node.outputs)
    return names


def _without(entries: dict[Key, Entry], gone: list[Key]) -> dict[Key, Entry]:
    """Entries without some keys, and without what was shared with or derived from them."""
    dropped = set(gone)
    grew = True
    while grew:
        grew = False
        for key, entry in entries.items():
            if key in dropped:
                continue
            sources = (
                [entry.key] if isinstance(entry, Shared) else [Key(*entry.x), Key(*entry.w)] if isinstance(entry, Derived) else []
            )
            if any(s in dropped for s in sources):
                dropped.add(key)
                grew = True
    return {k: e for k, e in entries.items() if k not in dropped}


def _conversions(entries: dict[Key, Entry], override: Override) -> dict[Key, Entry]:
    """Entries on the edges to some readers: a conversion from the tensor's own type."""
    base = entries.get(Key(override.tensor))
    found: dict[Key, Entry] = {}
    for reader in override.readers or ():
        edge = entries.get(Key(override.tensor, reader), base)
        if edge is None:
            raise RecipeError(f"Override of {override.tensor!r}: {reader!r} does not read it quantized.")
        found[Key(override.tensor, reader)] = _changed(edge, override)
    return found


def _changed(entry: Entry, override: Override) -> Entry:
    match entry:
        case Derived() | Dynamic():
            raise RecipeError(
                f"Override of {override.tensor!r}: its parameters follow from other tensors; set those instead."
            )
        case Shared():
            raise RecipeError(
                f"Override of {override.tensor!r}: it has the parameters of {entry.tensor!r}; override that tensor."
            )
        case Constant(scheme, algorithm, _):
            scheme = _scheme(scheme, override)
            if override.scale is not None and override.zero_point is not None:
                return Fixed(scheme, override.scale, override.zero_point)
            return Constant(scheme, algorithm, override.range)
        case Measured(scheme) | Bounded(scheme) | Fixed(scheme):
            scheme = _scheme(scheme, override)
            if override.scale is not None and override.zero_point is not None:
                return Fixed(scheme, override.scale, override.zero_point)
            if override.range is not None:
                return Bounded(scheme, *override.range)
            if isinstance(entry, Bounded):
                return replace(entry, scheme=scheme)
            return Measured(scheme)


def _scheme(scheme: Scheme, override: Override) -> Scheme:
    changes = {
        name: getattr(override, name)
        for name in ("qtype", "granularity", "symmetric", "reduce_range", "method")
        if getattr(override, name) is not None
    }
    if "qtype" in changes and "symmetric" not in changes and changes["qtype"].symmetric_by_default != scheme.qtype.signed:
        changes.setdefault("symmetric", scheme.symmetric)
    return scheme.but(**changes)
