"""The weight algorithms by name, as recipes and plans write them: ``gptq:damping=0.05``."""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

from octavo.algorithms.weights.blocks import Algorithm
from octavo.core.codec import options_of
from octavo.core.lazy import load_entry
from octavo.errors import RecipeError, closest

_ALGORITHMS: dict[str, str] = {
    "rtn": "rtn:Rtn",
    "furthest": "rtn:Furthest",
    "hqq": "hqq:Hqq",
    "k-quant": "k_quant:KQuant",
    "importance": "importance:Importance",
    "gptq": "gptq:Gptq",
}
NAMES = tuple(_ALGORITHMS)
WITH_DATA = "importance"  # of "auto" with data
AWQ_IF_SAMPLED = "awq:min-samples=1"  # the step before "auto" without data, unless there are no inputs either
WITHOUT_DATA = "k-quant:step=0.5"  # of "auto" without data; finer steps gain 1 % of the error in 4 × the time
_PACKAGE = "octavo.algorithms.weights"


@lru_cache
def algorithm(text: str) -> Algorithm:
    """Return the algorithm written as ``name`` or ``name:option=value:…``."""
    name, *options = (part.strip() for part in text.split(":"))
    name = name.lower().replace("_", "-")
    if name not in _ALGORITHMS:
        raise RecipeError(
            f"{name!r} is not a weight algorithm{closest(name, NAMES) or '.'} Known: {', '.join(NAMES)}."
        )
    kind = load_entry(_PACKAGE, _ALGORITHMS[name])
    found: Algorithm = kind(**options_of(f"The weight algorithm {name!r}", kind, options))
    return found


def text_of(chosen: Any) -> str:
    """Return how a recipe writes an algorithm: its name, and the options that differ from their defaults."""
    kind = type(chosen)
    entry = f"{kind.__module__.removeprefix(f'{_PACKAGE}.')}:{kind.__name__}"
    name = next(name for name, known in _ALGORITHMS.items() if known == entry)
    changed = [one for one in fields(chosen) if getattr(chosen, one.name) != one.default]
    return ":".join([name, *(f"{one.name}={_value(getattr(chosen, one.name))}" for one in changed)])


def _value(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else repr(value)
