"""What this process may use of the machine's processors."""

from __future__ import annotations

import os

from octavo.errors import RecipeError

MAX_THREADS = 1024  # of one session; the runtime starts every one of them


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def checked_threads(threads: int | None) -> int | None:
    """Return a number of threads; raise where no session can have as many."""
    if threads is None:
        return None
    if isinstance(threads, bool) or not isinstance(threads, int):
        raise RecipeError(f"threads must be a whole number, not {threads!r}.")
    if not 1 <= threads <= MAX_THREADS:
        raise RecipeError(
            f"threads={threads} is out of range; give 1 to {MAX_THREADS} (this machine has {cores()})."
        )
    return threads
