"""The time limit of a search, checked wherever work reports its progress.

Calibration, steps, comparison and timing call a progress function again and again. The one that
:meth:`Deadline.checked` wraps raises :class:`OutOfTime` when the time is over, which ends the trial under
way. The first usable result always has time: until there is one, nothing is stopped.
"""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, field

from octavo.core.progress import Progress
from octavo.errors import RecipeError


def processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class OutOfTime(BaseException):
    """The time of a search is over.

    Not an ``Exception``: code that goes on after a failure must not go on after this.
    """


@dataclass(frozen=True)
class Limit:
    """The seconds that a search may take."""

    seconds: float
    counts_waiting: bool = True  # also those in which other programs had the processor
    once_kept: float | None = None  # the seconds where there is a result that meets the requirements
    began: float | None = None  # on the clock of time.monotonic(); None: when the search begins

    def __post_init__(self) -> None:
        seconds = self.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise RecipeError(f"time_limit={seconds!r} is not a time; give seconds above 0, for example 600.")


# Where nothing is said, a search ends after so many seconds of work. Those in which other programs had the
# processor do not count: what is chosen must not depend on them. With a result that is faster and close in
# decibels it ends sooner, but for language models: 4 bits are tried after 8, and decibels say little of them.
TIME_LIMIT = Limit(180.0, counts_waiting=False, once_kept=40.0)


@dataclass
class Deadline:
    """When a search has to end; without a limit, never."""

    limit: Limit | None = None
    is_armed: bool = False  # once there is a result to fall back on
    is_kept: bool = False  # once a result meets the requirements
    began: float = field(default_factory=time.monotonic)
    made: float = field(default_factory=time.monotonic)
    made_cpu: float = field(default_factory=processor_seconds)

    @classmethod
    def after(cls, limit: Limit | float | None) -> Deadline:
        """So many seconds from now."""
        found = limit if limit is None or isinstance(limit, Limit) else Limit(limit)
        if found is None or found.began is None:
            return cls(found)
        return cls(found, began=found.began)

    @property
    def elapsed(self) -> float:
        """Return the seconds that have passed, as the limit counts them."""
        wall = time.monotonic() - self.began
        if self.limit is None or self.limit.counts_waiting:
            return wall
        return min(wall, processor_seconds() - self.made_cpu)

    @property
    def allowed(self) -> float:
        """Return the seconds that the search may take in all; endless without a limit."""
        if self.limit is None:
            return math.inf
        sooner = self.limit.once_kept if self.is_kept else None
        return self.limit.seconds if sooner is None else sooner

    @property
    def seconds_left(self) -> float:
        """Return the time that is left; endless as long as nothing may be stopped."""
        return self.allowed - self.elapsed if self.is_armed else math.inf

    @property
    def slowdown(self) -> float:
        """Return the seconds on the clock for each second of processor time so far."""
        spent = processor_seconds() - self.made_cpu
        return max(time.monotonic() - self.made, 0.0) / spent if spent > 0 else 1.0

    @property
    def is_over(self) -> bool:
        """Whether no further trial may start."""
        return self.seconds_left <= 0

    def check(self) -> None:
        """Raise where the time is over."""
        if self.is_over:
            raise OutOfTime

    def checked(self, progress: Progress) -> Progress:
        """Return a progress function that reports and then looks at the time."""

        def report(phase: str, done: int, total: int | None) -> None:
            progress(phase, done, total)
            self.check()

        return report
