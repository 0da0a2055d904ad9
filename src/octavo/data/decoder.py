"""Language models by their inputs: token ids, and what a model may take beside them.

A *decoder* reads token ids and gives logits; with a cache it also reads keys and values of the tokens before
(``past_key_values.0.key``) and gives them back with the new ones (``present.0.key``). Masks, positions and
the flag of merged decoders (``use_cache_branch``) follow from the ids and the length of the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.data.source import Array
from octavo.errors import ModelError
from octavo.model.runtime.session import InputSpec

_FLAG = "use_cache_branch"


def is_past(spec: InputSpec) -> bool:
    """Whether an input is a part of the cache, such as ``past_key_values.0.key``."""
    return "past" in spec.name.lower() and len(spec.shape) > 2 and spec.dtype.kind in "fViu"


def empty_past(spec: InputSpec, batch: int) -> Array:
    """Return the cache before the first token: of length 0 along the axis that the model leaves open."""
    sizes = [dim if isinstance(dim, int) and dim > 0 else 0 for dim in spec.shape[1:]]
    return np.zeros((batch, *sizes), spec.dtype)


def ids_of(specs: Sequence[InputSpec]) -> InputSpec:
    """Return the input of token ids: the one that is named so, or the first."""
    return next((spec for spec in specs if "ids" in spec.name.lower() and not _is_other(spec)), specs[0])


def _is_other(spec: InputSpec) -> bool:
    return any(word in spec.name.lower() for word in ("position", "token_type", "segment"))


def filled(
    ids: Array, specs: Sequence[InputSpec], past: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return the inputs for token ids ``[batch, new]`` that follow ``past``, or begin a text."""
    own, batch = ids_of(specs), len(ids)
    before = past_length(specs, past) if past else 0
    places = np.arange(before, before + ids.shape[1])
    feed: dict[str, Array] = {}
    for spec in specs:
        name = spec.name.lower()
        if spec.name == own.name:
            feed[spec.name] = ids.astype(spec.dtype)
        elif past and spec.name in past:
            feed[spec.name] = past[spec.name]
        elif is_past(spec):
            feed[spec.name] = empty_past(spec, batch)
        elif name == _FLAG:
            feed[spec.name] = np.full([1] * len(spec.shape), before > 0, spec.dtype)
        elif "mask" in name:
            feed[spec.name] = np.ones((batch, before + ids.shape[1]), spec.dtype)
        elif "position" in name:
            feed[spec.name] = np.tile(places.astype(spec.dtype), (batch, 1))
        elif "token_type" in name:
            feed[spec.name] = np.zeros(ids.shape, spec.dtype)
        else:
            raise ModelError(
                f"The input {spec.name!r} of the model can't be made from token ids; give feeds as data."
            )
    return feed


def both_float(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether both types are floats, of which one can be read as the other."""
    return all(kind.kind == "f" or kind.name == "bfloat16" for kind in (one, other))


def with_own_types(
    feed: Mapping[str, Array], specs: Sequence[InputSpec], *, timed: bool = False
) -> dict[str, Array]:
    """Return a feed as a model reads it whose floats, or whose cache, may have other types.

    A cache of integers has to be empty. One that is only timed may be as long as it is, and is zeros then.
    """
    own: dict[str, Array] = {}
    for spec in specs:
        given = feed.get(spec.name)
        if given is None or given.dtype == spec.dtype:
            continue
        if both_float(given.dtype, spec.dtype):
            own[spec.name] = given.astype(spec.dtype)
        elif is_past(spec):
            if given.size and not timed:
                raise ModelError(
                    f"The cache {spec.name!r} of a model is {spec.dtype}, and the data holds one of"
                    f" {given.dtype}; give texts, or feeds that begin with an empty cache."
                )
            sizes = zip(spec.shape, given.shape, strict=True)
            shape = [dim if isinstance(dim, int) and dim > 0 else size for dim, size in sizes]
            own[spec.name] = np.zeros(shape, spec.dtype)
    return {**feed, **own}


def past_length(specs: Sequence[InputSpec], past: Mapping[str, Array]) -> int:
    """Return how many tokens a cache holds: its size along the last axis that the model leaves open."""
    spec = next(one for one in specs if one.name in past)
    open_axes = [i for i, dim in enumerate(spec.shape) if i and not (isinstance(dim, int) and dim > 0)]
    return int(past[spec.name].shape[open_axes[-1] if open_axes else -2])


@dataclass(frozen=True)
class Decoder:
    """A language model with a cache: its inputs, and which output continues which part of the cache."""

    specs: tuple[InputSpec, ...]
    presents: Mapping[str, str]  # the output by the input
    logits: str

    @classmethod
    def of(cls, specs: Sequence[InputSpec], outputs: Sequence[str]) -> Decoder | None:
        """Return the decoder with these inputs and outputs, or None without a cache."""
        pasts = [spec.name for spec in specs if is_past(spec)]
        logits = next((name for name in outputs if "logits" in name.lower()), None)
        if not pasts or logits is None or not specs:
            return None
        presents = _presents(pasts, [name for name in outputs if name != logits])
        try:
            filled(np.zeros((1, 1), np.int64), specs)
        except ModelError:
            return None
        return cls(tuple(specs), presents, logits) if presents is not None else None

    def feed(self, ids: Array, past: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return the inputs for token ids ``[batch, new]`` that follow ``past``, or begin a text."""
        return filled(ids, self.specs, past)

    def past(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the cache that a run has made, as the inputs of the next one."""
        return {name: outputs[present] for name, present in self.presents.items()}


def _presents(pasts: Sequence[str], outputs: Sequence[str]) -> dict[str, str] | None:
    """Return the output that continues each part of the cache: by its name, else by its place."""
    renamed = (
        ("past_key_values", "present"),
        ("past_key_values", "present_key_values"),
        ("past", "present"),
    )
    for old, new in renamed:
        found = {name: name.replace(old, new) for name in pasts}
        if set(found.values()) <= set(outputs):
            return found
    named = [name for name in outputs if "present" in name.lower()]
    return dict(zip(pasts, named, strict=True)) if len(named) == len(pasts) else None
