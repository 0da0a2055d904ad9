"""How much an isolated run may take."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass

from octavo.errors import RecipeError, closest

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_LEAST_MEMORY = 256 << 20  # an interpreter with onnx and the runtime takes about half of it
_NAMES = ("memory", "seconds", "file-size")


@dataclass(frozen=True)
class Limits:
    """Bytes of memory, seconds by the clock, and bytes of a file that is written."""

    memory: int
    seconds: float
    file_size: int

    @classmethod
    def of(
        cls,
        memory: int | str | None = None,
        seconds: float | str | None = None,
        file_size: int | str | None = None,
    ) -> Limits:
        """Read limits such as ``"4GiB"``; the defaults are 3/4 of the machine's memory, 1 h and 64 GiB."""
        made = cls(
            _size("memory", memory) if memory is not None else _usual_memory(),
            _seconds(seconds) if seconds is not None else 3600.0,
            _size("file size", file_size) if file_size is not None else 64 << 30,
        )
        if made.memory < _LEAST_MEMORY:
            raise RecipeError(
                f"A memory limit of {made.memory} bytes is too little to load a model; give 256MiB or more."
            )
        return made

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Read limits on a command line: ``memory=4GiB,seconds=600,file-size=8GiB``, in any order."""
        found: dict[str, str] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, _, value = part.partition("=")
            if name not in _NAMES or not value:
                hint = "; it has no value;" if name in _NAMES else closest(name, _NAMES) or ";"
                raise RecipeError(
                    f"{part!r} is not a limit{hint} write for example memory=4GiB,seconds=600,file-size=8GiB."
                )
            found[name.replace("-", "_")] = value
        return cls.of(**found)


_MOST_BYTES = 1 << 62  # a limit of the system is a signed number of 64 bits


def _size(what: str, value: int | str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
    if found is None or found[2] not in _UNITS or len(found[1]) > 18:
        raise RecipeError(f"{value!r} is not a {what}; write bytes, or for example 512MiB or 4GB.")
    size = int(float(found[1]) * _UNITS[found[2]])
    if size > _MOST_BYTES:
        raise RecipeError(f"{value!r} is more {what} than any machine has; write for example 512MiB or 4GB.")
    return size


def _seconds(value: float | str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < 1e9:
        raise RecipeError(f"{value!r} is not a time limit; give seconds above 0, for example 600.")
    return seconds


def _usual_memory() -> int:
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        whole = 16 << 30
    return max(_LEAST_MEMORY, whole // 4 * 3)
