"""Results in a notebook: a few lines of plain HTML, without scripts, and data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from octavo.errors import RecipeError
from octavo.reporting.summary import Outcome, compressed_lines, headline, kept_in_float, sizes, type_lines
from octavo.reporting.text import clean, printable, some, tally

if TYPE_CHECKING:
    import pandas


_LISTED_REASONS = 12  # for keeping nodes in float


def result_html(result: Outcome) -> str:
    """Return what was quantized, the sizes, and what was kept in float and why."""
    plan = result.plan
    notes = list(dict.fromkeys((*compressed_lines(plan), *type_lines(result), *plan.notes, *result.notes)))
    rows = "".join(
        f"<tr><td>{group.count}</td><td>{_text(tally(group.op_types))}</td><td>{_text(group.reason)}</td>"
        f"<td>{_text(some(group.nodes))}</td></tr>"
        for group in kept_in_float(plan.skipped)[:_LISTED_REASONS]
    )
    head = "<tr><th>nodes</th><th>op types</th><th>kept in float because</th><th>names</th></tr>"
    table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""
    listed = "".join(f"<li>{_text(note)}</li>" for note in notes)
    return (
        f"<div><p><b>{_text(headline(plan, result.params))}</b><br>size: {_text(sizes(result))}</p>"
        f"{table}{f'<ul>{listed}</ul>' if listed else ''}</div>"
    )


def table_html(text: str) -> str:
    """Return text as it stands in a terminal."""
    return f"<pre>{escape(printable(text))}</pre>"


def _text(text: str) -> str:
    return escape(clean(text, 600))


# ---- Data frames of results, where pandas is installed


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame; nested values become columns with dots in their names."""
    try:
        import pandas
    except ImportError:
        raise RecipeError("to_pandas() needs pandas; install it with: pip install pandas.") from None
    return pandas.json_normalize([dict(row) for row in rows])
