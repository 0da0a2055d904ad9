"""Samples from a function, called anew for each pass: given itself, or by name as ``module:function``."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from octavo.calibration.readers.source import Sample, Source, Specs
from octavo.errors import DataError, closest

_CALL = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def is_call(text: str) -> bool:
    """Whether a text names a function as ``module:function``, and is no file."""
    return _CALL.fullmatch(text) is not None and not Path(text).exists()


@dataclass(frozen=True, eq=False)
class Call:
    """What a function gives, called anew for each pass; by name it can be called in another process too."""

    function: str | Callable[[], Any]
    specs: Specs
    find: Callable[[Any, Specs], Source]

    @cached_property
    def length(self) -> int | None:
        """The number of samples, where the function's result can tell."""
        return self._open().length

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Samples of a fresh call."""
        return self._open().portion(first, stop)

    def _open(self) -> Source:
        function = named(self.function) if isinstance(self.function, str) else self.function
        found = function()
        if isinstance(found, str):
            raise DataError(f"{self.function} gave a text, {found!r}; it has to give the samples themselves.")
        return self.find(found, self.specs)


def named(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; modules of the current folder are found last."""
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is loaded
        raise DataError(
            f"{name} can't be called: {type(error).__name__}: {error}; run octavo in the folder where "
            f"{module_name} lies."
        ) from error
    finally:
        if added:
            sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        public = [key for key in vars(module) if not key.startswith("_")]
        raise DataError(
            f"{module_name} has no function {function_name!r}{closest(function_name, public) or '.'}"
        )
    return function  # type: ignore[no-any-return]
