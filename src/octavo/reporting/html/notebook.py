"""A result in a notebook: a few lines of plain HTML, without scripts."""

from __future__ import annotations

from html import escape

from octavo.reporting.summary import Outcome, audit, headline, kept_float, sizes, stored_lines
from octavo.reporting.text import clean, printable, some, tally

_MOST = 12  # reasons


def result_html(result: Outcome) -> str:
    """What was quantized, the sizes, and what stayed float and why."""
    plan = result.plan
    notes = list(dict.fromkeys((*stored_lines(plan), *audit(result), *plan.notes, *result.notes)))
    rows = "".join(
        f"<tr><td>{group.count}</td><td>{_text(tally(group.op_types))}</td><td>{_text(group.reason)}</td>"
        f"<td>{_text(some(group.nodes))}</td></tr>"
        for group in kept_float(plan.skipped)[:_MOST]
    )
    head = "<tr><th>nodes</th><th>op types</th><th>kept float because</th><th>names</th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""
    listed = "".join(f"<li>{_text(note)}</li>" for note in notes)
    return (
        f"<div><p><b>{_text(headline(plan, result.params))}</b><br>size: {_text(sizes(result))}</p>"
        f"{table}{f'<ul>{listed}</ul>' if listed else ''}</div>"
    )


def table_html(text: str) -> str:
    """A table of text as it is in a terminal."""
    return f"<pre>{escape(printable(text))}</pre>"


def _text(text: str) -> str:
    return escape(clean(text, 600))
