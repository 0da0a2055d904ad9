"""Where statistics come from: which model, which data, which samples of it, and what was asked.

It is kept so that a file of statistics can refuse what it does not fit: another model, other data, a sample
that would be counted twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from octavo.errors import TableError

Span: TypeAlias = tuple[int, int]  # from the first sample up to, but not including, the last number

MODULUS = 1 << 128  # of fingerprints of data


@dataclass(frozen=True)
class Origin:
    """What statistics were made of.

    ``model`` is the fingerprint of the model as it was given, ``prepare`` how it was prepared. ``needs`` says
    for each tensor what was asked. ``spans`` are the samples that went in, ``data`` the sum of their marks
    (:func:`octavo.data.fingerprints.mark`), which no order changes. ``source`` names the whole of the data,
    where that has a name.
    """

    model: str
    prepare: str
    needs: Mapping[str, str]
    spans: tuple[Span, ...] = ()
    data: int = 0
    source: str = ""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the samples."""
        return f"{self.data:032x}"

    def merge(self, other: Origin) -> Origin:
        """Return where the merged statistics come from; raises where they don't belong together."""
        self.check_model(other.model, other.prepare, "the others")
        if self.needs != other.needs:
            raise TableError(
                "The statistics were collected for different tensors or methods and can't be merged; "
                "calibrate both with the same recipe."
            )
        if self.source != other.source:
            raise TableError(
                f"The statistics come from different data ({self.source or 'unnamed'} and "
                f"{other.source or 'unnamed'}), in which the same number is another sample; calibrate on one "
                "folder that holds all of it."
            )
        shared = overlap(self.spans, other.spans)
        if shared is not None:
            raise TableError(
                f"Samples {shared[0]} to {shared[1] - 1} are in both statistics and would be counted twice; "
                "merge files of different shards."
            )
        return replace(self, spans=joined(self.spans + other.spans), data=(self.data + other.data) % MODULUS)

    def check_model(self, model: str, prepare: str, where: str) -> None:
        """Refuse another model, or the same one prepared otherwise."""
        if model != self.model:
            raise TableError(
                f"The statistics were made with another model than {where} (fingerprint "
                f"{self.model[:12]}…, not {model[:12]}…); calibrate this model."
            )
        if prepare != self.prepare:
            raise TableError(
                f"The statistics were made of the model prepared otherwise than {where} ({self.prepare}; "
                f"not {prepare}); calibrate with the same options."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "model": self.model,
            "prepare": self.prepare,
            "needs": dict(self.needs),
            "spans": [list(span) for span in self.spans],
            "data": self.fingerprint,
            "source": self.source,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Origin:
        """Read what :meth:`to_dict` gave."""
        spans = tuple((int(first), int(stop)) for first, stop in data["spans"])
        needs = {str(name): str(need) for name, need in data["needs"].items()}
        number = int(data["data"], 16)
        apart = all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        if joined(spans) != spans or not apart or not 0 <= number < MODULUS:
            raise ValueError("impossible samples")
        return cls(str(data["model"]), str(data["prepare"]), needs, spans, number, str(data["source"]))


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return spans in order, with neighbours joined and empty ones left out."""
    found: list[Span] = []
    for first, stop in sorted(spans):
        if stop <= first:
            continue
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((first, stop))
    return tuple(found)


def overlap(one: Iterable[Span], other: Iterable[Span]) -> Span | None:
    """Return the first samples that are in both."""
    marked = sorted([(span, 0) for span in one] + [(span, 1) for span in other])
    for (left, a), (right, b) in itertools.pairwise(marked):
        if a != b and right[0] < left[1]:
            return right[0], min(left[1], right[1])
    return None


def missing(first: int, stop: int | None, spans: Iterable[Span]) -> list[tuple[int, int | None]]:
    """Return what is left of a range without these spans; ``stop`` None: without end."""
    gaps: list[tuple[int, int | None]] = []
    at = first
    for begin, end in joined(spans):
        if stop is not None and begin >= stop:
            break
        if begin > at:
            gaps.append((at, begin))
        at = max(at, end)
    if stop is None or at < stop:
        gaps.append((at, stop))
    return gaps
