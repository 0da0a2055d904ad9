"""``--report FILE``: a result in the form that the suffix names, the same for every verb."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.cli.paths import write_text
from octavo.cli.verb import as_json_text


def write_report(
    path: str,
    data: Mapping[str, Any],
    *,
    page: Callable[[], str],
    markdown: Callable[[], str],
    text: Callable[[], str],
) -> None:
    """Write a report as a page, as JSON, as Markdown or as text; only the requested form is made."""
    match Path(path).suffix.lower():
        case ".html":
            content = page()
        case ".json":
            content = as_json_text(data)
        case ".md":
            content = markdown()
        case _:
            content = text()
    write_text(path, content.rstrip("\n") + "\n")
