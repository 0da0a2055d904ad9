"""Several files and folders, listed or named by a pattern such as ``calib/*.npz``, one after the other."""

from __future__ import annotations

import bisect
import glob
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.data.source import Sample, Source, Specs, in_order
from octavo.errors import DataError


def read(data: object, specs: Specs) -> Source | None:
    """Return the samples of a list of paths; a list of anything else is not for this reader."""
    if not isinstance(data, list | tuple) or not data:
        return None
    if not all(isinstance(one, str | os.PathLike) for one in data):
        return None
    return Several(tuple(data)).for_inputs(specs)


def matching(pattern: str) -> list[Path]:
    """Return the paths that match a pattern, in natural order; an existing path matches itself."""
    if not glob.has_magic(pattern) or os.path.exists(pattern):  # noqa: PTH110  (False for names too long)
        return [Path(pattern)]
    found = in_order(Path(one) for one in glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not found:
        raise DataError(f"No file matches {pattern}; check the pattern, and put it in quotes.")
    return found


@dataclass(frozen=True)
class Several:
    """Data in several parts, each of any kind."""

    parts: tuple[Any, ...]

    def for_inputs(self, specs: Specs) -> Source:
        """Return the samples for a model with these inputs."""
        from octavo.data.readers import source_of  # which has this reader in its list

        sources = [source_of(part, specs) for part in self.parts]
        return sources[0] if len(sources) == 1 else Joined(tuple(sources))


@dataclass(frozen=True, eq=False)
class Joined:
    """The samples of several sources, one source after the other."""

    sources: Sequence[Source]

    @property
    def length(self) -> int | None:
        """Return the number of samples, where all sources can tell."""
        lengths = [source.length for source in self.sources]
        return None if None in lengths else sum(one for one in lengths if one is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the notes of all sources."""
        return tuple(note for source in self.sources for note in getattr(source, "notes", ()))

    def portion(self, first: int = 0, stop: int | None = None) -> Iterator[Sample]:
        """Give samples by index; sources that hold none of them are not opened."""
        if self.length is None:
            samples = itertools.chain.from_iterable(source.portion() for source in self.sources)
            yield from itertools.islice(samples, first, stop)
            return
        ends = list(itertools.accumulate(source.length or 0 for source in self.sources))
        end = ends[-1] if stop is None else min(stop, ends[-1])
        for number in range(bisect.bisect_right(ends, first), len(ends)):
            start = ends[number] - (self.sources[number].length or 0)
            if start >= end:
                return
            yield from self.sources[number].portion(max(first - start, 0), min(end, ends[number]) - start)
