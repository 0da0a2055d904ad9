"""Data frames of results, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import RecipeError

if TYPE_CHECKING:
    import pandas


def data_frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a data frame; nested values become columns with dots in their names."""
    try:
        import pandas
    except ImportError:
        raise RecipeError("to_pandas() needs pandas; install it with: pip install pandas.") from None
    return pandas.json_normalize([dict(row) for row in rows])
