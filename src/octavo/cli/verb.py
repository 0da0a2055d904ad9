"""What a verb is: a name, its flags, and a function that does the work and gives an answer."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from octavo.cli.console import Console


def as_json_text(data: Any) -> str:
    """Return plain data as JSON."""
    from octavo.core.files import json_text  # a verb that answers people does not need it

    return json_text(data)


@dataclass(frozen=True)
class Answer:
    """What a verb has to say: text for people, plain data for machines (``--json``)."""

    text: str
    data: dict[str, Any] = field(default_factory=dict)
    code: int = 0  # the exit code
    complaint: str = ""  # what is said on standard error, such as a requirement that is not met


_PLACES = {"?": "[{0}]", "*": "[{0} ...]", "+": "{0} [{0} ...]"}


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage of a verb: what has to be given. The other flags are explained below it anyway."""
    flags = [action for action in parser._actions if action.option_strings]
    places = [action for action in parser._actions if not action.option_strings]
    words = [_PLACES.get(str(one.nargs), "{0}").format(one.metavar or one.dest) for one in places]
    words += [f"{one.option_strings[0]} {one.metavar or one.dest.upper()}" for one in flags if one.required]
    return f"%(prog)s {' '.join(words)} [flags]"


@dataclass(frozen=True)
class Verb:
    """One verb of the command line."""

    name: str
    summary: str
    description: str
    examples: tuple[str, ...]
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Console], Answer]
    makes_file: bool = False  # its product is a file: with --quiet nothing is said

    def add_to(
        self,
        verbs: argparse._SubParsersAction[Any],
        parents: list[argparse.ArgumentParser],
        *,
        with_flags: bool = True,
    ) -> None:
        """Register the verb's parser, with the flags that it takes."""
        parser = verbs.add_parser(
            self.name,
            help=self.summary,
            description=self.description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in self.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            parents=parents,
            allow_abbrev=False,
        )
        if with_flags:
            self.arguments(parser)
            parser.usage = _usage(parser)
