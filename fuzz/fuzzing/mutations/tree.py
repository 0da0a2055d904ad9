"""Changes to what JSON and YAML hold: objects, lists and leaves."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

from fuzzing.mutations import raw

LEAVES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": 0}, *raw.NUMBERS, *raw.FLOATS)


def mutate_json(data: bytes, chance: Random, words: Sequence[str] = ()) -> bytes:
    """Change the tree that JSON bytes hold; bytes that hold none are changed as bytes."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return raw.mutate(
            data, chance, [b"{", b"}", b"[", b"]", b'"', b",", b":", b"NaN", b"1e999", b"\\ud800"]
        )
    tree = mutate(tree, chance, words)
    made = json.dumps(tree, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")
    return raw.mutate(made, chance) if chance.random() < 0.06 else made[: raw.MOST_BYTES]


def mutate(tree: Any, chance: Random, words: Sequence[str] = ()) -> Any:
    """A changed copy; ``words`` are texts that mean something to the reader."""
    holder = [copy.deepcopy(tree)]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        _change(holder, chance, words)
    return holder[0]


def _places(holder: list[Any]) -> list[tuple[Any, Any]]:
    """Every (container, key), the outermost first."""
    found: list[tuple[Any, Any]] = []
    open_ones: list[Any] = [holder]
    while open_ones and len(found) < 5000:
        one = open_ones.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list):
                open_ones.append(one[key])
    return found


def _change(holder: list[Any], chance: Random, words: Sequence[str]) -> None:
    places = _places(holder)
    container, key = chance.choice(places)
    match chance.randrange(10):
        case 0 | 1 | 2:
            container[key] = leaf(container[key], chance, words)
        case 3:
            other, place = chance.choice(places)
            container[key] = copy.deepcopy(other[place])
        case 4 if container is not holder:
            del container[key]
        case 5 if isinstance(container, dict):
            container[chance.choice((*map(str, container), raw.text(chance), *words))] = container.pop(key)
        case 6 if isinstance(container, list) and container is not holder:
            container.insert(key, copy.deepcopy(container[key]))
        case 7 if isinstance(container, dict):
            container[chance.choice((raw.text(chance), *words)) if words else raw.text(chance)] = container[
                key
            ]
        case 8:
            for _ in range(chance.choice((1, 2, 60))):
                container[key] = [container[key]] if chance.random() < 0.5 else {"a": container[key]}
        case _:
            container[key] = leaf(container[key], chance, words)


def leaf(old: Any, chance: Random, words: Sequence[str]) -> Any:
    """Another value, often one of the same kind."""
    kind = chance.random()
    if kind < 0.4 and isinstance(old, str):
        return chance.choice(words) if words and chance.random() < 0.7 else raw.text(chance)
    if kind < 0.4 and isinstance(old, bool):
        return not old
    if kind < 0.4 and isinstance(old, int):
        return chance.choice((old + 1, old - 1, -old, *raw.NUMBERS))
    if kind < 0.4 and isinstance(old, float):
        return chance.choice((old * 2, -old, *raw.FLOATS))
    if kind < 0.6:
        return chance.choice(words) if words and chance.random() < 0.5 else raw.text(chance)
    return copy.deepcopy(chance.choice(LEAVES))
