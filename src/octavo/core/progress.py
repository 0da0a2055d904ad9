"""How far work is: what a callback gets, and an estimate of how long all of it takes.

A callback gets what is being done, how much of it is done and how much there is. A run of several phases also
reports :data:`WHOLE_RUN`: the seconds since its beginning, and those that it will take in all by an estimate;
and :data:`WHOLE_RUN_BOUNDS`: those that it will take at least and at most, as far as that is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int | None], None]

WHOLE_RUN = "whole run, seconds"
WHOLE_RUN_BOUNDS = "whole run, seconds at least and at most"


def silent(phase: str, done: int, total: int | None) -> None:
    """A progress callback that shows nothing."""
