"""Where words go: answers to standard output, remarks and progress to standard error.

A bar is drawn only on a terminal, and only for a phase that lasts longer than a second. Elsewhere a phase
that took that long leaves one plain line, and a very long one a line each half minute: it never looks hung.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE = 1.0  # seconds before a phase is worth a bar or a line
INTERVAL = 30.0  # seconds between plain lines


def say(text: str, stream: TextIO) -> None:
    """Write lines without anything that a terminal would obey."""
    from octavo.reporting.text import printable

    print(printable(text), file=stream)


class Console:
    """Remarks and progress of one run."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream = stream if stream is not None else sys.stderr
        self._phase: _Phase | None = None

    def note(self, text: str) -> None:
        """A remark for people, unless they asked for quiet."""
        if not self.quiet:
            self.end_phase()
            say(text, self.stream)

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is."""
        if self.quiet:
            return
        if self._phase is None or self._phase.name != phase:
            self.end_phase()
            self._phase = _Bar(phase, self.stream) if self.stream.isatty() else _Lines(phase, self.stream)
        self._phase.update(done, total)

    def end_phase(self) -> None:
        """Clear the bar away; called before anything else is written."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.end()


class _Phase:
    """A stretch of work with a name."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self.stream = stream
        self.begun = time.monotonic()
        self.done, self.total = 0, None  # type: tuple[int, int | None]

    def update(self, done: int, total: int | None) -> None:
        """Remember how far it is."""
        self.done, self.total = done, total

    def end(self) -> None:
        """It is over."""

    def __str__(self) -> str:
        from octavo.reporting.text import clean

        count = (
            f" {self.done} of {self.total}"
            if self.total is not None
            else f" {self.done}"
            if self.done
            else ""
        )
        return f"{clean(self.name)}{count}, {time.monotonic() - self.begun:.0f} s"


class _Lines(_Phase):
    """Progress for logs: a line at the end, and one each half minute."""

    def __init__(self, name: str, stream: TextIO) -> None:
        super().__init__(name, stream)
        self._last = self.begun

    def update(self, done: int, total: int | None) -> None:
        super().update(done, total)
        if time.monotonic() - self._last > INTERVAL:
            self._last = time.monotonic()
            say(str(self), self.stream)

    def end(self) -> None:
        if time.monotonic() - self.begun > PATIENCE:
            say(str(self), self.stream)


class _Bar(_Phase):
    """Progress for a terminal: a bar that appears when the phase has lasted long enough."""

    def __init__(self, name: str, stream: TextIO) -> None:
        super().__init__(name, stream)
        self._lock = threading.Lock()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def update(self, done: int, total: int | None) -> None:
        super().update(done, total)
        with self._lock:
            if self._bar is not None and self._task is not None:
                self._bar.update(self._task, completed=done, total=total)

    def end(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def _show(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from octavo.reporting.text import clean

        with self._lock:
            if self._over:
                return
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=RichConsole(file=self.stream, markup=False),
                transient=True,
            )
            self._task = self._bar.add_task(clean(self.name), completed=self.done, total=self.total)
            self._bar.start()


def show(text: str) -> None:
    """Print an answer on a terminal: fitted to its width, with the heads of tables in bold."""
    from rich.console import Console as Terminal
    from rich.text import Text

    from octavo.reporting.screen import fit

    terminal = Terminal(highlight=False)
    shown = Text()
    for line in fit(text, terminal.width):
        shown.append(f"{line.text}\n", style={"head": "bold", "rule": "dim"}.get(line.kind, ""))
    terminal.print(shown, end="", soft_wrap=True)
