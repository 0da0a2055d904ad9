"""Which of several sizes each of many things gets, so that all of them lose the least within a budget."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Priced:
    """One size of one thing: its bytes, and what is lost with it."""

    bytes: float
    loss: float


def choose(things: Sequence[Sequence[Priced]], budget: float) -> list[int]:
    """Return the index of the size of each thing.

    Everything begins with its cheapest size; steps to a larger one are taken in the order of what a byte
    gains, as long as they fit. Sizes above the convex hull are never better than a mix of their neighbours.
    Where the cheapest sizes are beyond the budget already, they are the answer.
    """
    hulls = [_hull(sizes) for sizes in things]
    at = [0] * len(things)
    spent = sum(sizes[hull[0]].bytes for sizes, hull in zip(things, hulls, strict=True))
    waiting: list[tuple[float, int]] = []

    def offer(index: int) -> None:
        sizes, hull, here = things[index], hulls[index], at[index]
        if here + 1 < len(hull):
            now, after = sizes[hull[here]], sizes[hull[here + 1]]
            heapq.heappush(waiting, (-(now.loss - after.loss) / (after.bytes - now.bytes), index))

    for index in range(len(things)):
        offer(index)
    while waiting:
        _, index = heapq.heappop(waiting)
        sizes, hull = things[index], hulls[index]
        more = sizes[hull[at[index] + 1]].bytes - sizes[hull[at[index]]].bytes
        if spent + more > budget:
            continue
        spent += more
        at[index] += 1
        offer(index)
    return [hull[here] for hull, here in zip(hulls, at, strict=True)]


def _hull(sizes: Sequence[Priced]) -> list[int]:
    """Return the sizes of the lower convex hull of loss over bytes, the cheapest first."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i].bytes, sizes[i].loss))
    hull: list[int] = []
    for index in order:
        if hull and sizes[index].loss >= sizes[hull[-1]].loss:
            continue
        while len(hull) > 1 and _slope(sizes, hull[-2], hull[-1]) <= _slope(sizes, hull[-2], index):
            hull.pop()
        hull.append(index)
    return hull


def _slope(sizes: Sequence[Priced], one: int, other: int) -> float:
    """Return what a byte more gains between two sizes."""
    return (sizes[one].loss - sizes[other].loss) / (sizes[other].bytes - sizes[one].bytes)
