"""How the tests of data take samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.data.feeds import Feeds


def feeds(data: Any, specs: Any, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Give the samples of data, checked against the inputs."""
    return iter(Feeds(data, specs, limit=limit))
