"""The report as one HTML page.

==============  =============================================================
report          the page of one result, or of two side by side
sources         what it is made of: objects, JSON files, models
details         what a page needs beyond a result's own JSON
from_model      what a model's file alone tells
view            the page's data, joined by name
figures         the verdict, and what it rests on
graph, layout   operators and where they are drawn
page            data, styles and scripts in one file
notebook        a result as a few lines of HTML
==============  =============================================================
"""

from __future__ import annotations

from pathlib import Path

from octavo.model.files import replacing
from octavo.reporting.html.page import render
from octavo.reporting.html.sources import Side, Source, readable, sides
from octavo.reporting.html.view import page_data

__all__ = ["Side", "Source", "report", "sides", "write"]


def report(*results: Source, output: str | Path | None = None, title: str | None = None) -> str:
    """One self-contained HTML page of what is known; with ``output`` it is written there as well.

    ``results`` are what ``quantize``, ``compare``, ``evaluate`` and ``bench`` gave, their JSON or paths of
    it, or paths of quantized models. Those about one model are shown together; a second quantized model is
    laid beside the first.
    """
    text = _page(sides(list(results)), title)
    if output is not None:
        _save(text, output)
    return text


def write(found: list[Side], output: str | Path, title: str | None = None) -> int:
    """Write the page of sides that are assembled already; returns its size in bytes."""
    return _save(_page(found, title), output)


def _page(found: list[Side], title: str | None) -> str:
    with readable():
        return render(page_data(found, title))


def _save(text: str, output: str | Path) -> int:
    content = text.encode("utf-8")
    with replacing([Path(output).absolute()]) as (file,):
        file.write(content)
    return len(content)
