"""What the states have in common: where a wrapping state takes its extremes from, and damaged records."""

from __future__ import annotations

from octavo.core.stats import State
from octavo.errors import TableError


def damaged(what: str, why: object = "") -> TableError:
    """Return the error for a saved record that can't be what ``to_bytes`` wrote."""
    return TableError(f"The record of {what} is damaged{f' ({why})' if why else ''}; collect it again.")


class WithExtremes:
    """A state that holds another one, which answers for extremes and samples."""

    extremes: State

    @property
    def low(self) -> float:
        """Return the smallest value; infinite where nothing was seen."""
        return self.extremes.low

    @property
    def high(self) -> float:
        """Return the largest value; minus infinity where nothing was seen."""
        return self.extremes.high

    @property
    def count(self) -> int:
        """Return the number of samples in which the tensor had any value."""
        return self.extremes.count

    @property
    def non_finite(self) -> bool:
        """Whether an infinity was among the values."""
        return self.extremes.non_finite
