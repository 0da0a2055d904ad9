"""JSON: the encoding of the stock cache, or plainly ``{"tensor": [low, high]}``, which is read as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.calibration.tables import stock_cache
from octavo.calibration.tables.table_checks import unique
from octavo.core.stats import Range
from octavo.errors import TableError


def dump(ranges: Mapping[str, Range]) -> bytes:
    """Return the table as a cache of MinMax calibration."""
    return stock_cache.dump(stock_cache.from_ranges(ranges))


def parse(data: bytes) -> dict[str, Range]:
    """Return the ranges of a cache, or of a plain dictionary."""
    content = stock_cache.parse_json(data)
    if not isinstance(content, dict):
        raise TableError(f"The table is a JSON {type(content).__name__}, not an object of tensors.")
    if content.get("CLS") == "TensorsData":
        return stock_cache.ranges(stock_cache.decode(content))
    return unique((name, _plain(name, pair)) for name, pair in content.items())


def _plain(name: str, pair: Any) -> Range:
    numbers = isinstance(pair, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in pair
    )
    if not numbers or len(pair) != 2:
        raise TableError(f"The range of {name!r} is {str(pair)[:60]}; give it as [low, high].")
    try:
        return Range(float(pair[0]), float(pair[1]))
    except OverflowError:
        raise TableError(f"The range of {name!r} is beyond the largest float.") from None
