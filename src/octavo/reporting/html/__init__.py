"""The report as one HTML page.

==============================  =========================================================
report_parts                    what a page is made of: results, their JSON, models
details                         what a page needs beyond a result's own JSON
from_model                      what a model's file alone tells
page_data                       all data of the page, joined by name
verdict                         the verdict, and the tiles that it rests on
operator_graph, graph_layout    operators and where they are drawn
graph_drawing                   both, with what became of each operator
page                            data, styles and scripts in one file
==============================  =========================================================
"""

from __future__ import annotations

from pathlib import Path

from octavo.core.files import write_text
from octavo.core.outputs import refuse_inputs, refuse_sources
from octavo.reporting.html.page import render
from octavo.reporting.html.page_data import page_data
from octavo.reporting.html.report_parts import Side, Source, readable, sides

__all__ = ["Side", "Source", "report", "sides", "write"]


def report(*results: Source, output: str | Path | None = None, title: str | None = None) -> str:
    """Return a self-contained HTML page of results; with ``output`` it is also written there.

    ``results`` are what ``quantize``, ``compare``, ``evaluate`` and ``bench`` gave, their JSON or paths of
    it, or paths of quantized models. Results about one model are shown together; a second quantized model is
    shown beside the first.
    """
    if output is not None:
        refuse_inputs({"output": output}, {"result": [one for one in results if isinstance(one, str | Path)]})
        for one in results:
            refuse_sources(one, {"output": output})
    text = _page(sides(list(results)), title)
    if output is not None:
        _save(text, output)
    return text


def write(found: list[Side], output: str | Path, title: str | None = None) -> int:
    """Write the page of assembled sides, and return its size in bytes."""
    return _save(_page(found, title), output)


def _page(found: list[Side], title: str | None) -> str:
    with readable():
        return render(page_data(found, title))


def _save(text: str, output: str | Path) -> int:
    return write_text(output, text).stat().st_size
