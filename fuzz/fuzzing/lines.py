"""Which lines of Octavo's functions were reached: the signal that tells a new input from one like others.

Python 3.12 and later say so through ``sys.monitoring`` at almost no cost. Before, a trace function follows
one input of a few, and in it each function's first calls and then one of many.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import octavo

PACKAGE = str(Path(octavo.__file__).resolve().parent)
_OPTIMIZED = 0x1  # the flag of a function's code; modules and classes run once, on import
_FIRST, _EVERY = 24, 64
_TRACED = 4  # one input of so many is traced


class Lines:
    """Collects lines by file; ``fresh`` says whether there were new ones."""

    def __init__(self) -> None:
        self.found: dict[str, set[int]] = {}
        self._new = False
        self._inputs = 0
        self._calls: dict[CodeType, int] = {}

    def start(self) -> None:
        """Watch from now on."""
        if sys.version_info >= (3, 12):
            self._monitor()

    def turn(self) -> None:
        """The next input is about to be run."""
        if sys.version_info < (3, 12):
            sys.settrace(self._called if self._inputs % _TRACED == 0 else None)
            self._inputs += 1

    def reset(self) -> None:
        """Forget what was reached."""
        self.found, self._calls = {}, {}
        if sys.version_info >= (3, 12):
            monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
            monitoring.restart_events()

    def fresh(self) -> bool:
        """Whether a line was reached for the first time since the last question."""
        new, self._new = self._new, False
        return new

    def plain(self) -> dict[str, list[int]]:
        """For JSON."""
        return {name: sorted(lines) for name, lines in self.found.items()}

    def _add(self, code: CodeType, line: int) -> None:
        if line == code.co_firstlineno or not code.co_flags & _OPTIMIZED:
            return
        lines = self.found.setdefault(code.co_filename[len(PACKAGE) + 1 :], set())
        if line not in lines:
            lines.add(line)
            self._new = True

    def _monitor(self) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        tool = monitoring.COVERAGE_ID
        monitoring.use_tool_id(tool, "octavo-fuzz")

        def reached(code: CodeType, line: int) -> Any:
            if code.co_filename.startswith(PACKAGE):
                self._add(code, line)
            return monitoring.DISABLE

        monitoring.register_callback(tool, monitoring.events.LINE, reached)
        monitoring.set_events(tool, monitoring.events.LINE)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE):
            return None
        calls = self._calls[code] = self._calls.get(code, 0) + 1
        return self._line if calls <= _FIRST or calls % _EVERY == 0 else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self._add(frame.f_code, frame.f_lineno)
        return self._line


@functools.cache
def in_file(name: str) -> frozenset[int]:
    """The lines of a file's functions that can be reached."""
    path = Path(PACKAGE) / name
    return frozenset(_lines(compile(path.read_bytes(), str(path), "exec")))


def _lines(code: CodeType) -> set[int]:
    found: set[int] = set()
    if code.co_flags & _OPTIMIZED:
        found = {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _lines(constant)
    return found


def files_in(scope: tuple[str, ...]) -> list[str]:
    """The files of a scope: paths below the package, of files or of folders."""
    found: list[str] = []
    for entry in scope:
        path = Path(PACKAGE) / entry
        inside = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found += [str(one.relative_to(PACKAGE)) for one in inside]
    return found
