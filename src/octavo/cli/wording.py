"""Messages of the library in the words of the command line: ``labels=…`` becomes ``--labels …``."""

from __future__ import annotations

import re
from collections.abc import Collection

_OTHER_NAMES = {"style": "--format"}  # keywords whose flag has another name
_CALL = re.compile(r"(\w[\w.]*\([^()]*\))")  # code, which is left as it is
_KEYWORD = re.compile(r"(?<![\w.'\"/-])([a-z]+(?:_[a-z]+)*)=(\([^)]*\)|'[^']*'|…|[\w.%]*\w)?")
_SEVERAL_WORDS = re.compile(r"(?<![\w.'\"/=-])([a-z]+(?:_[a-z]+)+)(?![\w.'\"(/=])")


def in_flags(message: str, flags: Collection[str]) -> str:
    """Return a message with flags in the place of the keywords of Python, where the verb has such flags."""

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
