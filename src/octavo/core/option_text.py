"""Options in text: the ``option=value`` parts of ``name:option=value:…``, by the fields of a dataclass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from octavo.errors import RecipeError, closest


def options_of(
    owner: str, kind: Any, options: Iterable[str], more: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """Return the fields of a dataclass that options set; ``auto`` stands for the default.

    ``owner`` begins messages, such as "The step 'clip'"; ``more`` are options that are not fields.
    """
    hints = get_type_hints(kind)
    known = {entry.name: hints[entry.name] for entry in fields(kind)}
    given: dict[str, Any] = {}
    for option in options:
        key, sign, value = (part.strip() for part in option.partition("="))
        key = key.replace("-", "_")
        if key not in known and key not in (more or {}):
            raise RecipeError(
                f"{owner} has no option {key!r}{closest(key, known) or '.'}"
                f" Known: {', '.join(known) or 'none'}."
            )
        type_ = known.get(key) or (more or {})[key]
        value = value if sign else "yes"
        if value != "auto" or type_ in (bool, str):
            given[key] = _value(f"{owner}: {key.replace('_', '-')}", type_, value)
    return given


def _value(where: str, type_: Any, text: str) -> Any:
    if bool in (type_, *get_args(type_)):
        if text.lower() not in ("yes", "no", "true", "false"):
            known = "yes or no" if type_ is bool else "yes, no or auto"
            raise RecipeError(f"{where} must be {known}, not {text!r}.")
        return text.lower() in ("yes", "true")
    if type_ is str:
        return text
    try:
        number = int(text) if int in (type_, *get_args(type_)) else float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number
    except ValueError as error:
        raise RecipeError(f"{where} must be a number or auto, not {text!r}.") from error
