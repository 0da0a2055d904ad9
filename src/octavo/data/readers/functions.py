"""Samples from a function, called anew for each pass: given itself, or by name as ``module:function``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from octavo.data.named_functions import is_named_function, named_function
from octavo.data.source import Sample, Source, Specs
from octavo.errors import DataError, OctavoError


def read_named_function(data: object, specs: Specs) -> FunctionSource | None:
    """Return the samples of a function that is given by name."""
    return FunctionSource(str(data), tuple(specs)) if is_named_function(data) else None


def read_function(data: object, specs: Specs) -> FunctionSource | None:
    """Return the samples of a function."""
    return FunctionSource(data, tuple(specs)) if callable(data) else None


@dataclass(frozen=True, eq=False)
class FunctionSource:
    """The samples of a function, called anew for each pass."""

    function: str | Callable[[], Any]
    specs: Specs

    @cached_property
    def length(self) -> int | None:
        """Return the number of samples, where the function's result can tell."""
        return self._open().length

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give the samples of a fresh call."""
        samples = self._open().portion(first, stop)
        return samples if callable(self.function) else _with_name(samples, self.function)

    def _open(self) -> Source:
        from octavo.data.readers import source_of  # which has this reader in its list

        found = self._call()
        if inspect.iscoroutine(found) or inspect.isasyncgen(found):
            if inspect.iscoroutine(found):
                found.close()
            raise DataError(f"{self.function} is asynchronous; give a function without 'async'.")
        if found is None:
            raise DataError(f"{self.function} returned nothing; it must return the samples.")
        if isinstance(found, str):
            raise DataError(
                f"{self.function} returned the text {found!r}; it must return the samples themselves."
            )
        return source_of(found, self.specs)

    def _call(self) -> Any:
        """Call the function; one that takes arguments, or one given by name that fails, is a data error."""
        function = named_function(self.function) if isinstance(self.function, str) else self.function
        try:
            inspect.signature(function).bind()
        except TypeError as error:
            raise DataError(
                f"{self.function} is called without arguments, and does not allow that: {error}; give a "
                "function of no arguments that returns the samples."
            ) from error
        except ValueError:  # a function in C may have no signature
            pass
        if not isinstance(self.function, str):
            return function()
        try:
            return function()
        except OctavoError:
            raise
        except (Exception, SystemExit) as error:
            raise _failure(error, self.function) from error


def _with_name(samples: Iterator[Sample], function: str) -> Iterator[Sample]:
    """Yield the samples of a function given by name; what it raises meanwhile is a data error."""
    try:
        yield from samples
    except OctavoError:
        raise
    except (Exception, SystemExit) as error:
        raise _failure(error, function) from error


def _failure(error: BaseException, function: str) -> DataError:
    return DataError(f"{function} failed: {type(error).__name__}: {error}.")
