"""Everything that Octavo raises on purpose.

::

    OctavoError
    ├── RecipeError   the request is wrong: an unknown key, a pattern that matches nothing, types that clash
    ├── ModelError    the model is wrong, or of a kind that can't be quantized
    ├── DataError     the calibration data does not fit the model, or ruins it
    ├── TableError    a saved plan, statistics file or table does not fit
    ├── OutputError   a result could not be written, or failed its own check
    └── IsolationError  an isolated run crashed, or met a limit

Each message says what is wrong, where (file, node, tensor), and what to do next.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

_LONGEST, _MOST = 200, 5000  # of a name, and of names: comparing takes the square of the one, times the other


class OctavoError(Exception):
    """The root of the tree: catch this to catch all of them."""


class RecipeError(OctavoError):
    """The request is wrong."""


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


def closest(name: str, known: Iterable[str], count: int = 3) -> str:
    """A clause that names the known names nearest to a misspelt one: ``; did you mean 'a' or 'b'?``."""
    if len(name) > _LONGEST:
        return ""
    short = (one for one in known if len(one) <= _LONGEST)
    near = difflib.get_close_matches(name, list(itertools.islice(short, _MOST)), n=count, cutoff=0.5)
    if not near:
        return ""
    return "; did you mean " + " or ".join(repr(n) for n in near) + "?"
