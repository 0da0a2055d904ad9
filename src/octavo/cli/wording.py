"""Messages of the library and of argparse in the words of the command line.

``labels=…`` becomes ``--labels …``, and ``argument --report: expected one argument`` a sentence.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection

from octavo.errors import closest

_OTHER_NAMES = {"style": "--format"}  # keywords whose flag has another name
_CALL = re.compile(r"(\w[\w.]*\([^()]*\))")  # code, which is left as it is
_KEYWORD = re.compile(r"(?<![\w.'\"/-])([a-z]+(?:_[a-z]+)*)=(\([^)]*\)|'[^']*'|…|-?[\w.%]*\w)?")
_OF_A_FILE = re.compile(r"(Recipe|Plan) \S+:? ")  # what is said of a file is in the words of that file
_SEVERAL_WORDS = re.compile(r"(?<![\w.'\"/=-])([a-z]+(?:_[a-z]+)+)(?![\w.'\"(/=])")


def in_flags(message: str, flags: Collection[str]) -> str:
    """Return a message with flags in the place of the keywords of Python, where the verb has such flags."""
    if _OF_A_FILE.match(message):
        return message

    def flag_of(name: str) -> str | None:
        flag = _OTHER_NAMES.get(name, f"--{name.replace('_', '-')}")
        return flag if flag in flags else None

    def assigned(match: re.Match[str]) -> str:
        flag, value = flag_of(match[1]), match[2] or ""
        if flag is None:
            return match[0]
        return f"{flag} {'x'.join(re.findall(r'[^(), ]+', value)) or value}".strip().replace("'", "")

    def named(match: re.Match[str]) -> str:
        return flag_of(match[1]) or match[0]

    parts = _CALL.split(message)  # every second one is a call
    parts[::2] = [_SEVERAL_WORDS.sub(named, _KEYWORD.sub(assigned, part)) for part in parts[::2]]
    return "".join(parts)


def wrong_request(message: str, parser: argparse.ArgumentParser) -> str:
    """Return what argparse complains about as sentences: what is wrong, and what to write instead."""
    if required := re.fullmatch(r"the following arguments are required: (.*)", message):
        example = (parser.epilog or "").partition("examples:\n")[2].partition("\n")[0].strip()
        such_as = f", for example: {example}" if example else ""
        return f"{parser.prog} needs {required[1]}{such_as}; see '{parser.prog} --help'."
    named, _, said = message.removeprefix("argument ").partition(": ")
    # The long name of -o/--output, and the first of --compressed/--stored
    named = next((one for one in named.split("/") if one.startswith("--")), named.rpartition("/")[2])
    if choice := re.match(r"invalid choice: '([^']*)' \(choose from (.*)\)", said):
        known = [name.strip("' ") for name in choice[2].split(",")]
        hint = closest(choice[1], known) or "."
        listed = ", ".join(known)
        said = f"{named} can't be {choice[1]!r}{hint} It is one of {listed}"
        if not named.startswith("-"):
            said = f"{parser.prog} has no {choice[1]!r}{hint} It takes {listed}"
    elif re.match(r"expected (one|at least one|\d+) argument", said):
        said = f"{named} needs a value: {named} {_metavar(named, parser)}"
    elif value := re.match(r"invalid (?:float|int|_?number) value: (.*)", said):
        said = f"{named} can't be {value[1]}: that is not a number"
    elif other := re.match(r"not allowed with argument (.*)", said):
        said = f"{named} can't be combined with {other[1]}; leave one of them out"
    else:
        said = f"{named}: {said}" if said else message
    return f"{said}; see '{parser.prog} --help'."


def _metavar(flag: str, parser: argparse.ArgumentParser) -> str:
    """Return what the help calls the value of a flag."""
    for action in parser._actions:
        if flag in action.option_strings and isinstance(action.metavar, str):
            return action.metavar
    return "VALUE"
