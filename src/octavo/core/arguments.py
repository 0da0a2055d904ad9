"""Arguments of another kind than a call takes, refused before any work is done.

What several calls take by the same name is of the same kind in all of them; the table says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from octavo.errors import RecipeError, closest


def _is_whole(given: Any) -> bool:
    return isinstance(given, Integral) and not isinstance(given, bool)


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) and not isinstance(given, bool)


def _is_path(given: Any) -> bool:
    return isinstance(given, str | os.PathLike)


def _is_name(given: Any) -> bool:
    return isinstance(given, str)


def _is_pattern(given: Any) -> bool:
    return isinstance(given, str) or callable(given)


def _any_of(one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check for one of a kind or several of it; what can be read only once is not looked into."""

    def check(given: Any) -> bool:
        if one(given) or isinstance(given, Iterator):
            return True
        return isinstance(given, Iterable) and all(map(one, given))

    return check


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("samples", "threads", "workers", "stride", "batch", "window"), (_is_whole, "a whole number")
    ),
    **dict.fromkeys(("seconds", "scale"), (_is_number, "a number")),
    **dict.fromkeys(("effort", "optimize", "clock", "address"), (_is_name, "a name")),
    **dict.fromkeys(("output", "path"), (_is_path, "the path of a file")),
    **dict.fromkeys(("include", "exclude", "nodes"), (_any_of(_is_pattern), "a pattern or a list of them")),
    **dict.fromkeys(("op_types", "steps"), (_any_of(_is_name), "a name or a list of names")),
    "symmetric": (lambda given: isinstance(given, bool), "True or False"),
    "bits": (_is_number, "a number"),
    "progress": (callable, "a function of a phase, what is done of it, and how much there is"),
    "layers": (lambda given: isinstance(given, Mapping), "a dict such as {'*down_proj*': 8}"),
    "options": (lambda given: isinstance(given, Mapping), "a dict"),
}


def check_arguments(**given: Any) -> None:
    """Raise for the first argument that is not of the kind its name stands for; None is always one."""
    for name, value in given.items():
        if value is None or name not in _KINDS:
            continue
        is_kind, words = _KINDS[name]
        if not is_kind(value):
            raise RecipeError(f"{name} must be {words}, not {value!r}.")


def check_type(name: str, given: Any, kinds: type | tuple[type, ...], words: str) -> None:
    """Raise where an argument is of none of some types."""
    if not isinstance(given, kinds):
        raise RecipeError(f"{name} must be {words}, not of type {type(given).__name__}.")


_OTHER_KEYWORDS = {  # of the command line and of onnxruntime.quantization, and what they are called here
    "format": "style",
    "quant_format": "style",
    "float": "float_type",
    "layer": "layers",
    "weight_type": "weights",
    "activation_type": "activations",
    "per_channel": "per",
    "calibrate_method": "method",
    "nodes_to_quantize": "include",
    "nodes_to_exclude": "exclude",
    "op_types_to_quantize": "op_types",
    "calibration_data_reader": "data",
    "model_output": "output",
    "model_input": "model",
}


def unknown_keyword(name: str, known: Iterable[str]) -> RecipeError:
    """Return the error about a keyword that a call does not have, with the one that may be meant."""
    meant = _OTHER_KEYWORDS.get(name)
    hint = f"; here it is called {meant!r}." if meant is not None else closest(name, known) or "."
    return RecipeError(f"There is no keyword {name!r}{hint}")
