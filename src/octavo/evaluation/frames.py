"""Tables for pandas, where it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.errors import RecipeError

if TYPE_CHECKING:
    import pandas


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Rows as a data frame."""
    try:
        import pandas
    except ImportError:
        raise RecipeError("to_pandas() needs pandas; install it with: pip install pandas.") from None
    return pandas.DataFrame([dict(row) for row in rows])
