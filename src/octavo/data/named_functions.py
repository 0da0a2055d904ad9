"""Functions that are given by name, as ``module:function``."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.errors import DataError, closest

_NAMED = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")


def is_named_function(data: object) -> bool:
    """Return whether data is the name of a function, as ``module:function``, and not a file."""
    return isinstance(data, str) and _NAMED.fullmatch(data) is not None and not os.path.exists(data)  # noqa: PTH110


def named_function(name: str) -> Callable[..., Any]:
    """Return the function that ``module:function`` names; the current folder is searched last."""
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name, None)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is loaded
        advice = f"run octavo in the folder where {module_name} lies"
        if module_name.endswith(".py"):
            advice = f"name the module without .py, as {module_name.removesuffix('.py')}:{function_name}"
        raise DataError(f"{name} can't be called: {type(error).__name__}: {error}; {advice}.") from error
    finally:
        if added:
            sys.path.remove(here)
    if not callable(function):
        public = [key for key, value in vars(module).items() if key[0] != "_" and callable(value)]
        raise DataError(
            f"{module_name} has no function {function_name!r}{closest(function_name, public) or '.'}"
        )
    return function  # type: ignore[no-any-return]
