"""Frozen dataclasses to and from plain data (what JSON and YAML hold), by their annotations.

Unknown keys and wrong types fail with the path of the place and the closest known name, because a
misspelt option that passes silently is the worst kind of option. A member of a union is written as
``{"kind": "ClassName", …}``; types with a short form of their own (``uint8``, ``channel:1``,
``percentile:99.99``) are written as that string.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import Any, get_args, get_type_hints

import numpy as np

from octavo.core import granularity as grain
from octavo.core.qtypes import QType, qtype
from octavo.core.scheme import METHODS, Method, all_methods
from octavo.core.shown import has_default
from octavo.errors import OctavoError, RecipeError, closest

# ---- Options in text: the ``option=value`` parts of ``name:option=value:…``, by the fields of a dataclass


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


def method_text(method: Method) -> str | dict[str, Any]:
    """``minmax``, ``percentile:99.99``, or a mapping where more than the first number is set."""
    name, fields = method.name, dataclasses.fields(method)
    changed = {f.name: getattr(method, f.name) for f in fields if getattr(method, f.name) != f.default}
    if not changed:
        return name
    if list(changed) == [fields[0].name] and type(changed[fields[0].name]) in (int, float):
        return f"{name}:{changed[fields[0].name]}"
    return {name: changed}


def parse_method(data: Any, path: str = "") -> Method:
    """Return a method from text or from ``{name: settings}``.

    A number behind the name, as in ``percentile:99.9``, is the method's first setting; others are named:
    ``minmax:average=yes``.
    """
    name: Any
    settings: Any
    if isinstance(data, Mapping) and len(data) == 1:
        ((name, settings),) = data.items()
    else:
        _expect(isinstance(data, str), path, "a calibration method, by name or as {name: settings}", data)
        name, _, text = data.partition(":")
        settings = text
    known = METHODS if name in METHODS else all_methods()
    if name not in known:
        raise RecipeError(
            f"{_prefix(path)}{_shown(name)} is not a calibration method{closest(_text(name), known) or '.'}"
            f" Known: {', '.join(known)}."
        )
    kind = known[name]
    if isinstance(settings, str):
        settings = _settings(kind, settings, _below(path, name))
    method: Method = decode(kind, settings, _below(path, name))
    return method


def _settings(kind: type[Method], text: str, path: str) -> dict[str, Any]:
    """Return the settings in the text behind a method's name: its first one, or named ones."""
    first = next((field.name for field in dataclasses.fields(kind)), None)
    if not text:
        return {}
    named = text if "=" in text or first is None else f"{first}={text}"
    return options_of(path, kind, named.split(":"))


def encode(value: Any) -> Any:
    """Return plain data that :func:`decode` turns back into the same value."""
    if isinstance(value, (QType, grain.PerTensor, grain.PerChannel, grain.PerBlock)):
        return str(value)
    if isinstance(value, Method):
        return method_text(value)
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = {
            f.name: encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if not has_default(f, getattr(value, f.name))
        }
        return {"kind": type(value).__name__, **plain} if getattr(type(value), "TAGGED", False) else plain
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return [encode(v) for v in items]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    raise RecipeError(f"{value!r} can't be written to a file; give it by name or pattern instead.")


def decode(kind: Any, data: Any, path: str = "") -> Any:
    """Return the value of type ``kind`` that ``data`` describes; errors name the place by its path."""
    if kind is QType:
        return _parse_qtype(data, path)
    if kind is Method:
        return parse_method(data, path)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, data, path)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _decode_dataclass(kind, data, path)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _decode_enum(kind, data, path)
    if origin in (tuple, list):
        return _decode_sequence(kind, origin, data, path)
    if origin is dict:
        _expect(isinstance(data, Mapping), path, "a mapping", data)
        _expect(all(isinstance(k, str) for k in data), path, "a mapping by name", data)
        return {k: decode(typing.get_args(kind)[1], v, _below(path, k)) for k, v in data.items()}
    if kind is float:
        return _decode_float(data, path)
    if kind in (str, int, bool):
        fits = isinstance(data, kind) and (kind is not int or _is_number(data))
        _expect(fits, path, _NAMES[kind], data)
        return data
    if kind is Any:
        return data
    raise RecipeError(f"{path or 'The value'}: can't read {_shown(data)} as {kind}.")


def _is_number(data: int) -> bool:
    """Whether this is a whole number of 64 bits; more is neither shown nor computed with."""
    return not isinstance(data, bool) and -(1 << 63) <= data < 1 << 63


def _decode_union(kind: Any, data: Any, path: str) -> Any:
    members = [m for m in typing.get_args(kind) if m is not types.NoneType]
    if data is None and len(members) < len(typing.get_args(kind)):
        return None
    if (parse := _LEAVES.get(frozenset(members))) is not None:
        return parse(data, path)
    if isinstance(data, Mapping):
        members = _tagged(members, data, path)
        data = {k: v for k, v in data.items() if k != "kind"}
    elif isinstance(data, str):  # whoever takes text speaks first, and its complaint counts
        members.sort(key=lambda m: m is not str and not hasattr(m, "from_text"))
    failures = []
    for member in members:
        try:
            return decode(member, data, path)
        except RecipeError as error:
            failures.append(error)
    raise failures[0]


def _tagged(members: list[Any], data: Mapping[Any, Any], path: str) -> list[Any]:
    """Return the members that a mapping may describe: the one its ``kind`` names, or all that need none."""
    named = {m.__name__: m for m in members if isinstance(m, type)}
    if "kind" in data:
        name = data["kind"]
        if not isinstance(name, str) or name not in named:
            raise RecipeError(
                f"{_below(path, 'kind')}: {_shown(name)} is unknown{closest(_text(name), named) or '.'}"
                f" Known: {', '.join(named)}."
            )
        return [named[name]]
    plain = [m for m in members if not getattr(m, "TAGGED", False)]
    if not plain:
        raise RecipeError(f"{_below(path, 'kind')}: missing; write one of {', '.join(named)}.")
    return plain


def _decode_dataclass(kind: type, data: Any, path: str) -> Any:
    shorthand = getattr(kind, "from_text", None)
    if isinstance(data, str) and shorthand is not None:
        return _located(shorthand, data, path)
    _expect(isinstance(data, Mapping), path, "a mapping of settings", data)
    hints = _hints(kind)
    values = {}
    for key, item in current_names(kind.__name__, data, path).items():
        if key == "kind" and item == kind.__name__ and getattr(kind, "TAGGED", False):
            continue
        place = _below(path, key)
        if key not in hints:
            near = closest(_text(key), hints)
            raise RecipeError(f"{place}: unknown key{near or '.'} Known: {', '.join(hints)}.")
        values[key] = decode(hints[key], item, place)
    for field in dataclasses.fields(kind):
        if field.name not in values and field.default is field.default_factory is dataclasses.MISSING:
            raise RecipeError(f"{_below(path, field.name)}: missing; it has no default.")
    return _located(lambda given: kind(**given), values, path)


def current_names(kind: str, data: Mapping[Any, Any], path: str = "") -> Mapping[Any, Any]:
    """Return the mapping with the keys that have been renamed since under the names that they have today."""
    renamed = RENAMED.get(kind)
    if renamed is None or renamed.keys().isdisjoint(data):
        return data
    for old, new in renamed.items():
        if old in data and new in data:
            raise RecipeError(f"{_below(path, old)}: this is the former name of {new!r}; remove one of them.")
    return {renamed.get(key, key): item for key, item in data.items()}


def _decode_enum(kind: type[Enum], data: Any, path: str) -> Enum:
    if isinstance(data, kind):
        return data
    values = {str(m.value): m for m in kind}
    if not isinstance(data, str) or data not in values:
        near = closest(_text(data), values)
        raise RecipeError(f"{_prefix(path)}{_shown(data)} is not one of {', '.join(values)}{near or '.'}")
    return values[data]


def _decode_sequence(kind: Any, origin: type, data: Any, path: str) -> Any:
    arguments = [a for a in typing.get_args(kind) if a is not Ellipsis]
    fixed = origin is tuple and Ellipsis not in typing.get_args(kind)
    if not fixed and isinstance(data, (str, int, float)):
        data = [data]  # one needs no brackets
    _expect(isinstance(data, (list, tuple)), path, "a list", data)
    if fixed:
        _expect(len(data) == len(arguments), path, f"{len(arguments)} items", data)
        return tuple(
            decode(a, v, f"{path}[{i}]") for i, (a, v) in enumerate(zip(arguments, data, strict=True))
        )
    return origin(decode(arguments[0], v, f"{path}[{i}]") for i, v in enumerate(data))


def _decode_float(data: Any, path: str) -> float:
    """Return a finite number; text too, because YAML takes ``1e-4`` for text."""
    fits = isinstance(data, (int, float, str)) and not isinstance(data, bool)
    try:
        number = float(data) if fits else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    _expect(math.isfinite(number), path, "a finite number", data)
    return number


def _parse_qtype(data: Any, path: str) -> QType:
    _expect(isinstance(data, (str, QType)), path, "the name of a quantized type", data)
    kind: QType = _located(qtype, data, path)
    return kind


def _parse_granularity(data: Any, path: str) -> grain.Granularity:
    known = isinstance(data, (str, grain.PerTensor, grain.PerChannel, grain.PerBlock))
    _expect(known, path, "a granularity such as 'channel'", data)
    parsed: grain.Granularity = _located(grain.parse, data, path)
    return parsed


def _located(parse: Callable[[Any], Any], data: Any, path: str) -> Any:
    try:
        return parse(data)
    except OctavoError as error:
        raise type(error)(f"{_prefix(path)}{error}") from error


def _expect(holds: bool, path: str, wanted: str, data: Any) -> None:
    if not holds:
        raise RecipeError(f"{f'{path}: ' if path else ''}expected {wanted}, found {_shown(data)}.")


def _below(path: str, key: Any) -> str:
    return f"{path}.{_text(key)}" if path else _text(key)


def _prefix(path: str) -> str:
    return f"{path}: " if path else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    """Return the value as a message shows it: files come from anywhere, and some hold very much."""
    try:
        return _BRIEF.repr(value)
    except ValueError:  # an integer too long to be written in decimals
        return f"a very large {type(value).__name__}"


def read_names(owner: Any, kinds: Mapping[str, Any]) -> None:
    """Replace fields of a frozen value that are given by name or as plain data: ``int8``, ``channel``."""
    for name, kind in kinds.items():
        value = getattr(owner, name)
        if isinstance(value, str | dict):
            object.__setattr__(owner, name, decode(kind, value, name))


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind)}


# Keys of files that earlier versions have written, by class: the former name, and the present one.
RENAMED: dict[str, dict[str, str]] = {
    "Override": {"readers": "consumers"},
    "Plan": {"absorbed": "fused", "guards": "barriers", "spelling": "writing", "stored": "compressed"},
    "Quantized": {"form": "lowering"},
    "Recipe": {
        "absorb_activations": "fuse_clamps",
        "at_run_time": "dynamic_nodes",
        "spelling": "writing",
        "stored": "compressed",
    },
    "Shared": {"reader": "consumer"},
}

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 80  # characters of a wrong value that a message quotes
_BRIEF.maxlevel = 2  # of lists in lists
_NAMES = {str: "text", int: "a whole number", bool: "true or false"}
# Unions with a short form of their own, by their members: ``Method | None`` is Method, for a value.
_LEAVES: dict[frozenset[Any], Callable[[Any, str], Any]] = {
    frozenset(typing.get_args(grain.Granularity)): _parse_granularity,
    frozenset({Method}): parse_method,
}
