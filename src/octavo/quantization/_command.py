"""What the command lines share: flags that mean what they say, and errors that are sentences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from octavo.errors import OctavoError, RecipeError

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def as_bool(text: str) -> bool:
    """``True`` or ``False`` as people write them."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")


def add_flag(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *names: str, help: str, default: bool = False
) -> None:
    """A flag that may stand alone or be followed by True or False."""
    parser.add_argument(
        *names, nargs="?", const=True, default=default, type=as_bool, metavar="True|False", help=help
    )


def run(
    parser: argparse.ArgumentParser,
    work: Callable[[argparse.Namespace], None],
    arguments: Sequence[str] | None,
) -> int:
    """Parse, work, and turn what goes wrong into one line on stderr and an exit code."""
    options = parser.parse_args(arguments)
    try:
        work(options)
    except (OctavoError, ValueError, OSError, NotImplementedError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, RecipeError) else 1
    return 0
