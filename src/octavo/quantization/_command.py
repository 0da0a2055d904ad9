"""What the command lines share: flags that mean what they say, and errors that are sentences."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from octavo.errors import OctavoError, OutputError, RecipeError

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def as_bool(text: str) -> bool:
    """``True`` or ``False`` as people write them."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")


def add_flag(
    parser: argparse.ArgumentParser,
    *names: str,
    help: str,
    default: bool | None = False,
) -> None:
    """A flag that may stand alone or be followed by True or False."""
    parser.add_argument(
        *names, nargs="?", const=True, default=default, type=as_bool, metavar="True|False", help=help
    )


def new_output(options: argparse.Namespace) -> Path:
    """Return the path of ``--output_model``, which must not exist; ``--verbose`` turns the log on."""
    if options.verbose:
        log = logging.getLogger("octavo.quantization")
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
    target = Path(options.output_model)
    if target.exists():
        raise OutputError(f"{target} exists already; choose another output path, or remove it.")
    return target


def exit_code(main: Callable[[], None], program: str) -> int:
    """Run a command and return its exit code; what goes wrong is one line on stderr."""
    try:
        main()
    except (OctavoError, ValueError, OSError, NotImplementedError) as error:
        print(f"{program}: {error}", file=sys.stderr)  # noqa: T201
        return 2 if isinstance(error, RecipeError) else 1
    return 0
