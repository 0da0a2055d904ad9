"""Errors that are both Octavo's and of the kind that callers of the stock functions catch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import DataError, ModelError, OutputError, RecipeError
from octavo.planning.policies.listed import BlocksError


class QuantizationWarning(UserWarning):
    """A result that is worse than it could be, and what to change."""


class OptionError(RecipeError, ValueError):
    """An argument, an option or an override that makes no sense."""


class UnsupportedError(RecipeError, NotImplementedError):
    """A request that nothing carries out."""


class InferenceError(ModelError, RuntimeError):
    """A tensor whose type is not known."""


class RangeError(DataError, ValueError):
    """A tensor without a usable range."""


class UnwritableError(OutputError, OSError):
    """An output that can't be written."""


class NoFolderError(UnwritableError, FileNotFoundError):
    """An output in a folder that does not exist."""


@contextmanager
def as_stock() -> Iterator[None]:
    """Let errors of the core pass as the kinds that callers of the stock functions know."""
    try:
        yield
    except (OptionError, UnsupportedError, InferenceError, RangeError):
        raise
    except BlocksError as error:
        raise UnsupportedError(str(error)) from error
    except RecipeError as error:
        raise OptionError(str(error)) from error
    except DataError as error:
        raise RangeError(str(error)) from error
    except OutputError as error:
        is_missing = isinstance(error.__cause__, FileNotFoundError)
        raise (NoFolderError if is_missing else UnwritableError)(str(error)) from error
