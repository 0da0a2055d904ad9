"""Output: answers to standard output, notes and progress to standard error.

A bar is drawn only on a terminal, and only for work that lasts longer than a second. Elsewhere a phase that
took that long leaves one plain line, and a very long one a line each half minute: it never looks hung. Where
a run of many phases says how long all of it takes, bar and time left are those of the whole run.
"""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from octavo.core.progress import WHOLE_RUN

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # seconds before a phase is worth a bar or a line
INTERVAL = 30.0  # seconds between plain lines
_LONGEST_TITLE = 32  # characters of what is being done, so that a bar of 80 columns holds the rest


def say(text: str, stream: TextIO) -> None:
    """Write lines without anything that a terminal would obey; a log on a full disk ends no run."""
    from octavo.reporting.text import printable

    try:
        print(printable(text), file=stream)
    except BrokenPipeError:
        raise
    except OSError:
        return


class Console:
    """Remarks and progress of one run."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self.quiet = quiet
        self.stream = stream if stream is not None else sys.stderr
        self._shown: _Lines | _Bar | None = None

    def note(self, text: str) -> None:
        """Write a remark for people, unless they want quiet."""
        if not self.quiet:
            self.end_phase()
            say(text, self.stream)

    def progress(self, phase: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is."""
        if self.quiet:
            return
        if self._shown is None:
            self._shown = _Bar(self.stream) if self.stream.isatty() else _Lines(self.stream)
        self._shown.update(phase, done, total)

    def end_phase(self) -> None:
        """Clear the bar away; called before anything else is written."""
        shown, self._shown = self._shown, None
        if shown is not None:
            shown.end()


@dataclass
class _Phase:
    """A stretch of work with a name: how much of it is done, and how long it has taken."""

    name: str
    done: int = 0
    total: int | None = None
    begun: float = field(default_factory=time.monotonic)
    updated: float = field(default_factory=time.monotonic)  # when a part was last finished

    @property
    def is_counted(self) -> bool:
        """Whether the work has parts, so that there is a number of those that are left."""
        return self.total is not None and self.total > 1

    @property
    def elapsed(self) -> float:
        """Return the seconds since the phase began."""
        return time.monotonic() - self.begun

    @property
    def seconds_left(self) -> float | None:
        """Return the seconds that the rest takes at the speed so far; None as long as that is a guess."""
        spent = self.updated - self.begun
        if not self.is_counted or self.total is None or not self.done or spent < PATIENCE:
            return None
        left = spent * (self.total - self.done) / self.done
        return max(0.0, left - (time.monotonic() - self.updated))

    def update(self, done: int, total: int | None) -> None:
        """Take note of how much is done."""
        if done != self.done:
            self.updated = time.monotonic()
        self.done, self.total = done, total

    @property
    def title(self) -> str:
        """Return what is being done, for a line that has to fit."""
        from octavo.reporting.text import clean

        return clean(self.name, _LONGEST_TITLE)

    @property
    def count(self) -> str:
        """Return how much is done."""
        return f"{self.done}/{self.total}" if self.is_counted else str(self.done) if self.done else ""

    @property
    def rest(self) -> str:
        """Return how much is done, and how long the rest takes."""
        left = self.seconds_left
        return f"{self.count}, {_clock(left)} left" if left is not None else self.count

    def __str__(self) -> str:
        from octavo.reporting.text import clean

        count = f" {self.done} of {self.total}" if self.is_counted else f" {self.done}" if self.done else ""
        return f"{clean(self.name)}{count}, {self.elapsed:.0f} s"


@dataclass
class _WholeRun:
    """How long all phases together take, as the run estimates it."""

    begun: float
    end: float

    @classmethod
    def of(cls, elapsed: int, total: int | None) -> _WholeRun:
        now = time.monotonic()
        return cls(now - elapsed, now - elapsed + max(total or 0, elapsed))

    @property
    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.begun

    @property
    def seconds_left(self) -> float:
        """Return the seconds that are left; at least one, as it is not over."""
        return max(1.0, self.end - time.monotonic())


def _clock(seconds: float) -> str:
    return f"{int(seconds + 0.5) // 60}:{int(seconds + 0.5) % 60:02}"


class _Lines:
    """Progress for logs: a line at the end of each long phase, and one each half minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase: _Phase | None = None
        self._whole: _WholeRun | None = None
        self._last = time.monotonic()

    def update(self, name: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is; another name ends the one before."""
        if name == WHOLE_RUN:
            self._whole = _WholeRun.of(done, total)
            return
        if self._phase is None or self._phase.name != name:
            self.end()
            self._phase = _Phase(name)
        self._phase.update(done, total)
        if time.monotonic() - self._last > INTERVAL:
            self._last = time.monotonic()
            left = self._whole.seconds_left if self._whole is not None else self._phase.seconds_left
            where = " in all" if self._whole is not None else ""
            rest = f", about {left:.0f} s left{where}" if left is not None else ""
            say(f"{self._phase}{rest}", self._stream)

    def end(self) -> None:
        """Write the line of the phase, if it was long."""
        if self._phase is not None and self._phase.elapsed > PATIENCE:
            say(str(self._phase), self._stream)
        self._phase = None


class _Bar:
    """Progress for a terminal: one line for all phases, which appears when the work lasts long enough.

    It says what is being done, how much of it, how long the rest takes, and the time since the beginning,
    which goes on counting in phases that can't tell how far they are.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._phase = _Phase("")
        self._whole: _WholeRun | None = None
        self._begun = time.monotonic()
        self._bar: Progress | None = None
        self._is_over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def update(self, name: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is."""
        with self._lock:
            if name == WHOLE_RUN:
                self._whole = _WholeRun.of(done, total)
            else:
                if self._phase.name != name:
                    self._phase = _Phase(name)
                self._phase.update(done, total)
            self._draw()

    def end(self) -> None:
        """Clear the line."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    @property
    def rest(self) -> str:
        """Return how much of the phase is done, and how long the whole run takes, or else this phase."""
        if self._whole is None:
            return self._phase.rest
        return ", ".join(filter(None, [self._phase.count, f"{_clock(self._whole.seconds_left)} left in all"]))

    @property
    def clock(self) -> str:
        """Return the time since the beginning."""
        return _clock(time.monotonic() - self._begun)

    def _draw(self) -> None:
        if self._bar is not None:
            (task,) = self._bar.tasks
            if self._whole is not None:
                task.completed, task.total = self._whole.elapsed, self._whole.end - self._whole.begun
            else:
                task.total = self._phase.total if self._phase.is_counted else None  # none: the bar pulses
                task.completed = self._phase.done
            task.fields["phase"] = self._phase

    def _show(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn

        with self._lock:
            if self._is_over:
                return
            self._bar = Progress(
                TextColumn("{task.fields[phase].title}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[bar].rest}", markup=False),
                TextColumn("{task.fields[bar].clock}", style="progress.elapsed"),
                console=RichConsole(file=self._stream, markup=False),
                transient=True,
            )
            self._bar.add_task("", total=None, phase=self._phase, bar=self)
            self._draw()
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
