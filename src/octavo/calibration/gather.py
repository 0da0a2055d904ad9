"""Calibration by an engine: shards go out, statistics come back in any order, and are merged exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from octavo.calibration.engines import Engine
from octavo.calibration.job import Calibration
from octavo.calibration.run import few_below
from octavo.calibration.saved import Checkpoint, asked
from octavo.calibration.shards import Shards
from octavo.calibration.watched import Watched
from octavo.core.origin import Origin
from octavo.core.stats import Need, Stats
from octavo.errors import DataError, RecipeError

_MANY = 3  # samples: fewer don't pay for optimizing any graph, nor for threads that wait awake


def gather(
    model: ir.Model,
    needs: Mapping[str, Need],
    feeds: Watched,
    engine: Engine,
    *,
    origin: Origin | None = None,
    shard: tuple[int, int] | None = None,
    checkpoint: str | Path | None = None,
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[str | Path] = (),
    progress: Callable[[int, int | None], None] | None = None,
) -> Stats:
    """Statistics of the data, or of its ``shard`` (which one of how many, from 1), by an engine.

    With a ``checkpoint`` what is finished is kept in that file, and a later call goes on from there; the
    caller removes it when the result is safe. ``origin`` says which model and data it is.
    """
    first, stop = _part(feeds, shard)
    about = replace(origin or Origin("", "", {}), needs=asked(needs))
    keeper = Checkpoint(checkpoint)
    kept = keeper.load(about, first, stop)
    pile = _Pile()
    if kept is not None:
        pile.add(kept)
    done = kept.origin.spans if kept is not None and kept.origin is not None else ()
    total = None if stop is None else stop - first
    begun = 0  # samples of the shard that is under way here

    def tell() -> None:
        nonlocal begun
        begun += 1
        if progress is not None:
            progress(pile.samples + begun, total)

    shards = Shards(feeds, first, stop, done, engine.workers, tell)
    job = Calibration(
        model,
        needs,
        feeds,
        about,
        total=feeds.length,
        few=shards.fewer_than(max(few_below(model), _MANY)),
        providers=providers,
        custom_ops=custom_ops,
    )
    try:
        for _, stats in engine.map(job, shards):
            pile.add(stats)
            begun = 0
            if progress is not None:
                progress(pile.samples, total)
            if keeper.due():
                keeper.write(pile.total())
    except (KeyboardInterrupt, SystemExit):
        if pile.samples:
            keeper.write(pile.total())
        raise
    found = pile.total() if pile.samples else Stats({}, 0, about)
    if shard is None and found.origin is not None:
        feeds.fingerprint = found.origin.fingerprint
    return found if origin is not None else Stats(found, found.samples)


def _part(feeds: Watched, shard: tuple[int, int] | None) -> tuple[int, int | None]:
    """The samples of a shard of the whole: the first number, and the one after the last."""
    if feeds.length == 0:
        next(iter(feeds))  # raises what there is to say
    if shard is None:
        return 0, feeds.length
    number, count = shard
    if not 1 <= number <= count:
        raise RecipeError(f"There is no shard {number} of {count}; shards are numbered from 1 to {count}.")
    if feeds.length is None:
        raise DataError(
            "The calibration data does not tell how many samples it has, so it can't be divided into shards; "
            "give files or a folder, or a list."
        )
    if count > feeds.length:
        raise DataError(
            f"{feeds.length} samples can't be divided into {count} shards; use {feeds.length} or fewer."
        )
    return feeds.length * (number - 1) // count, feeds.length * number // count


@dataclass
class _Pile:
    """Statistics merged like the digits of a binary counter: as few and as small merges as can be."""

    parts: list[tuple[int, Stats]] = field(default_factory=list)
    samples: int = 0

    def add(self, stats: Stats) -> None:
        """One more; what is there stays as it is until the merges are done."""
        count, height, parts = stats.samples, 0, list(self.parts)
        while parts and parts[-1][0] <= height:
            height, (_, other) = parts[-1][0] + 1, parts.pop()
            stats = other.merge(stats)
        self.parts, self.samples = [*parts, (height, stats)], self.samples + count

    def total(self) -> Stats:
        """All of it, which then is one part."""
        found = self.parts[-1][1]
        for _, part in reversed(self.parts[:-1]):
            found = part.merge(found)
        self.parts = [(self.parts[0][0], found)]
        return found
