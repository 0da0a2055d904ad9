"""Changes to any field of a protobuf message, found through its descriptor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzzing.mutations import raw

_ENUM, _TEXT, _MESSAGE = 8, 9, 10  # CPPTYPE_*
_BYTES = 12  # TYPE_BYTES
_FLOATS, _BOOL, _UNSIGNED, _NARROW = (5, 6), 7, (3, 4), (1, 3)


def is_repeated(field: Any) -> bool:
    """Whether a field is a list; the ways to ask differ between releases of protobuf."""
    told = getattr(field, "is_repeated", None)
    return bool(told() if callable(told) else told) if told is not None else field.label == 3


def all_of(message: Any) -> list[Any]:
    """The message and every one inside it."""
    found, open_ones = [], [message]
    while open_ones:
        one = open_ones.pop()
        found.append(one)
        for field, value in one.ListFields():
            if field.cpp_type == _MESSAGE:
                open_ones += list(value) if is_repeated(field) else [value]
    return found


def change_any(message: Any, chance: Random, words: Sequence[str]) -> None:
    """Change one field of one message inside."""
    one = chance.choice(all_of(message))
    filled = [field for field, _ in one.ListFields()]
    field = chance.choice(filled if filled and chance.random() < 0.8 else list(one.DESCRIPTOR.fields))
    try:
        if is_repeated(field):
            _change_list(getattr(one, field.name), field, message, chance, words)
        elif chance.random() < 0.1:
            one.ClearField(field.name)
        elif field.cpp_type == _MESSAGE:
            _put(getattr(one, field.name), _like(message, field, chance), chance)
        else:
            setattr(one, field.name, _value(field, getattr(one, field.name), chance, words))
    except (ValueError, TypeError, OverflowError):
        return  # what protobuf itself does not let anyone write


def _like(message: Any, field: Any, chance: Random) -> Any:
    """Another message of a field's type, out of the same model."""
    same = [one for one in all_of(message) if one.DESCRIPTOR.full_name == field.message_type.full_name]
    return chance.choice(same) if same else None


def _put(place: Any, other: Any, chance: Random) -> None:
    if other is None:
        place.SetInParent()
        return
    copied = type(other)()
    copied.CopyFrom(other)
    if chance.random() < 0.5:
        place.CopyFrom(copied)
    else:
        place.MergeFrom(copied)


def _change_list(items: Any, field: Any, message: Any, chance: Random, words: Sequence[str]) -> None:
    at = chance.randrange(len(items)) if len(items) else 0
    kind = chance.randrange(5)
    if kind == 0 and len(items):
        del items[at]
    elif kind == 1 and len(items) > 1:
        _swap(items, at, chance.randrange(len(items)), field.cpp_type == _MESSAGE)
    elif field.cpp_type == _MESSAGE:
        _put(items.add(), _like(message, field, chance), chance)
    elif kind == 2 or not len(items):
        items.append(_value(field, items[at] if len(items) else None, chance, words))
    elif kind == 3 and len(items) < 64:
        items.extend(list(items))
    else:
        items[at] = _value(field, items[at], chance, words)


def _swap(items: Any, one: int, other: int, messages: bool) -> None:
    if not messages:
        items[one], items[other] = items[other], items[one]
        return
    kept = type(items[one])()
    kept.CopyFrom(items[one])
    items[one].CopyFrom(items[other])
    items[other].CopyFrom(kept)


def _value(field: Any, old: Any, chance: Random, words: Sequence[str]) -> Any:
    makers: dict[int, Callable[[], Any]] = {
        _BOOL: lambda: chance.random() < 0.5,
        _ENUM: lambda: chance.choice(field.enum_type.values).number,
    }
    if field.cpp_type in makers:
        return makers[field.cpp_type]()
    if field.cpp_type in _FLOATS:
        return chance.choice(raw.FLOATS)
    if field.type == _BYTES:
        return raw.mutate(old or b"", chance)
    if field.cpp_type == _TEXT:
        return chance.choice(words) if words and chance.random() < 0.7 else raw.text(chance)
    number = chance.choice((*raw.NUMBERS, *range(-3, 30), (old or 0) + 1, (old or 0) - 1))
    bits = 32 if field.cpp_type in _NARROW else 64
    if field.cpp_type in _UNSIGNED:
        return number % (1 << bits)
    return max(-(1 << bits - 1), min(number, (1 << bits - 1) - 1))
