"""The samples that the parts of a folder are calibrated and compared on, kept on disk: caches are large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Feed = dict[str, Array]


class StoredFeeds(Sequence[Feed]):
    """Feeds of one part in the order in which they were recorded; each is read when it is needed."""

    def __init__(self, folder: Path, files: Sequence[Path] = (), names: Sequence[str] = ()) -> None:
        self._folder = folder
        self._files = list(files)
        self._names = list(names)

    def append(self, feed: Mapping[str, Array]) -> None:
        """Keep a feed."""
        self._folder.mkdir(exist_ok=True)
        self._names = self._names or list(feed)
        path = self._folder / f"{len(self._files)}.npz"
        arrays: dict[str, Any] = {f"a{i}": feed[name] for i, name in enumerate(self._names)}
        np.savez(path, **arrays)
        self._files.append(path)

    def part(self, first: int, stop: int | None = None) -> StoredFeeds:
        """Some of the feeds."""
        return StoredFeeds(self._folder, self._files[first:stop], self._names)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Feed: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Feed]: ...
    def __getitem__(self, index: int | slice) -> Feed | Sequence[Feed]:
        if isinstance(index, slice):
            return [self._read(path) for path in self._files[index]]
        return self._read(self._files[index])

    def __iter__(self) -> Iterator[Feed]:
        return map(self._read, self._files)

    def _read(self, path: Path) -> Feed:
        with np.load(path) as stored:
            return {name: stored[f"a{i}"] for i, name in enumerate(self._names)}
