"""Everything that Octavo raises on purpose.

::

    OctavoError
    ├── RecipeError   the request is wrong: an unknown key, a pattern that matches nothing, types that clash
    ├── ModelError    the model is wrong, or of a kind that can't be quantized
    ├── DataError     the calibration data does not fit the model, or ruins it
    ├── TableError    a saved plan, statistics file or table does not fit
    ├── OutputError   a result could not be written, or failed its own check
    └── IsolationError  an isolated run crashed, or met a limit

Each message says what is wrong, where (file, node, tensor), and what to do next. Names in it may come from
untrusted files: what a terminal would obey is taken out, and words that are too long lose their middle.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

# Of a name, and of names: comparing takes the square of the one, times the other.
_MAX_NAME_LENGTH, _MAX_NAMES = 200, 5000

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_TWO_STOPS = re.compile(r"(?<=[\w'\")\]])\.\.$")
_WORD, _MESSAGE = 400, 8000  # characters


class OctavoError(Exception):
    """The root of the tree: catch this to catch all of them."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*(_tame(part) if isinstance(part, str) else part for part in parts))


class RecipeError(OctavoError):
    """The request is wrong: a recipe, a keyword, a pattern, a target."""


class ModelError(OctavoError):
    """The model is broken, or not of a kind that can be quantized."""


class DataError(OctavoError):
    """The calibration data does not fit the model."""


class TableError(OctavoError):
    """A saved plan, statistics file or table does not fit."""


class OutputError(OctavoError):
    """A result could not be written, or failed the check before it was handed over."""


class IsolationError(OctavoError):
    """A run in a process of its own crashed, or met a limit."""


def _tame(message: str) -> str:
    if len(message) > _WORD:
        message = re.sub(rf"\S{{{_WORD + 1},}}", lambda found: _shortened(found[0], _WORD), message)
    return _ended(_shortened(_OBEYED.sub("", message), _MESSAGE))


def _ended(message: str) -> str:
    """End a sentence whose last words are another library's, which may have no full stop, or its own."""
    text = _TWO_STOPS.sub(".", message.rstrip())
    return f"{text}." if text and text[-1] not in ".?!…:" else text


def _shortened(text: str, most: int) -> str:
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def closest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A clause that names the known names nearest to a misspelt one: ``; did you mean 'a' or 'b'?``."""
    if len(name) > _MAX_NAME_LENGTH:
        return ""
    import difflib  # only where somebody has misspelt a name

    short = itertools.islice((one for one in known if len(one) <= _MAX_NAME_LENGTH), _MAX_NAMES)
    near = difflib.get_close_matches(name, list(dict.fromkeys(short)), n=count, cutoff=0.5)
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(n) for n in near) + "?"
