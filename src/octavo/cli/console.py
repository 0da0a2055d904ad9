"""Output: answers to standard output, notes and progress to standard error.

A bar is drawn only on a terminal, and only for work that lasts longer than a second. Elsewhere a phase that
took that long leaves one plain line, and a very long one a line each half minute: it never looks hung. Where
a run of many phases says how long all of it takes, bar and time left are those of the whole run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from octavo.core.progress import WHOLE_RUN, WHOLE_RUN_BOUNDS

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

PATIENCE = 1.0  # seconds before a phase is worth a bar or a line
INTERVAL = 30.0  # seconds between plain lines
OVERDUE = 0.25  # of the time since an estimate was told: what is left where it is over
WIDE = 1.5  # times the least that is left: where it may be more, both ends are shown
OPEN = 4.0  # times the least: where it may be more, only the least is shown
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

    clock: Callable[[], float] = time.monotonic
    begun: float = 0.0
    ends: tuple[float, float, float] | None = None  # by the estimate, at the earliest and at the latest
    told: float = 0.0
    bounds: tuple[int, int] | None = None  # seconds that it takes in all, which come before the estimate

    def update(self, name: str, done: int, total: int | None) -> None:
        """Take note of an estimate, or of its bounds."""
        total = max(total or 0, done)
        if name == WHOLE_RUN_BOUNDS:
            self.bounds = (done, total)
            return
        self.told = self.clock()
        self.begun = self.told - done
        least, most = self.bounds if self.bounds is not None else (total, total)
        self.ends = (self.begun + total, self.begun + min(least, total), self.begun + max(most, total))

    @property
    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return self.clock() - self.begun

    @property
    def share(self) -> float | None:
        """Return how much of the run is over; None as long as nobody knows."""
        if self.ends is None:
            return None
        return self.elapsed / max(self.elapsed + self._left(self.ends[0]), 1e-9)

    @property
    def rest(self) -> str:
        """Return how long the rest takes: about so long, from so long to so long, or at least so long."""
        if self.ends is None:
            return ""
        left, least, most = map(self._left, self.ends)
        if most > OPEN * least:
            return f"at least {_clock(least)} left in all"
        if most > WIDE * least:
            return f"{_clock(least)} to {_clock(most)} left in all"
        return f"about {_clock(left)} left in all"

    def _left(self, end: float) -> float:
        """Return the seconds to an end; one that is near, or over, moves away while nothing new is told."""
        now = self.clock()
        return max(1.0, end - now, OVERDUE * (now - self.told))


def _clock(seconds: float) -> str:
    return f"{int(seconds + 0.5) // 60}:{int(seconds + 0.5) % 60:02}"


class _Lines:
    """Progress for logs: a line at the end of each long phase, and one each half minute."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._phase: _Phase | None = None
        self._whole = _WholeRun()
        self._last = time.monotonic()

    def update(self, name: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is; another name ends the one before."""
        if name in (WHOLE_RUN, WHOLE_RUN_BOUNDS):
            self._whole.update(name, done, total)
            return
        if self._phase is None or self._phase.name != name:
            self.end()
            self._phase = _Phase(name)
        self._phase.update(done, total)
        if time.monotonic() - self._last > INTERVAL:
            self._last = time.monotonic()
            left = self._phase.seconds_left
            rest = self._whole.rest or (f"about {_clock(left)} left" if left is not None else "")
            say(", ".join(filter(None, [str(self._phase), rest])), self._stream)

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
        self._begun = time.monotonic()
        self._whole = _WholeRun()
        self._bar: Progress | None = None
        self._is_over = False
        self._timer = threading.Timer(PATIENCE, self._show)
        self._timer.daemon = True
        self._timer.start()

    def update(self, name: str, done: int, total: int | None) -> None:
        """Take note of how far a phase is."""
        with self._lock:
            if name in (WHOLE_RUN, WHOLE_RUN_BOUNDS):
                self._whole.update(name, done, total)
            else:
                if self._phase.name != name:
                    self._phase = _Phase(name)
                self._phase.update(done, total)

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
        if not (whole := self._whole.rest):
            return self._phase.rest
        return ", ".join(filter(None, [self._phase.count, whole]))

    @property
    def clock(self) -> str:
        """Return the time since the beginning."""
        return _clock(time.monotonic() - self._begun)

    def draw(self, bar: Progress) -> None:
        """Take over what is known now; called for each frame, so that the bar moves between reports."""
        if not bar.tasks:
            return
        (task,) = bar.tasks
        if (share := self._whole.share) is not None:
            task.completed, task.total = share, 1.0
        else:
            task.total = self._phase.total if self._phase.is_counted else None  # none: the bar pulses
            task.completed = self._phase.done
        task.fields["phase"] = self._phase

    def _show(self) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn

        shown = self

        class Frames(Progress):
            """A line whose figures are those of the moment in which it is drawn."""

            def get_renderables(self) -> Iterable[RenderableType]:
                shown.draw(self)
                return super().get_renderables()

        with self._lock:
            if self._is_over:
                return
            self._bar = Frames(
                TextColumn("{task.fields[phase].title}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[bar].rest}", markup=False),
                TextColumn("{task.fields[bar].clock}", style="progress.elapsed"),
                console=RichConsole(file=self._stream, markup=False),
                transient=True,
            )
            self._bar.add_task("", total=None, phase=self._phase, bar=self)
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
