"""Verbs in a process of their own, with limits and without network: for untrusted models.

::

    this process ── call ──► watcher ── forks ──► worker: limits, then the verb
         ▲                      │                    │
         └── JSON: progress, answer or error ◄───────┘

The worker starts from a fresh interpreter with a clean environment, no descriptors but its own, limits on
memory, time and the size of files, and, where the system lets a process give them up, no network and no place
to write to but the folders of its outputs. Nothing that it says is trusted: answers are JSON, and errors are
sentences. If it crashes, the caller gets an :class:`~octavo.errors.IsolationError`, and what it left beside
the output is removed.
"""

from octavo.isolation.handle import Isolated, Outcome, isolated
from octavo.isolation.limits import Limits

__all__ = ["Isolated", "Limits", "Outcome", "isolated"]
