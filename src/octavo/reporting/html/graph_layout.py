"""Where each operator is drawn: in layers from the inputs down, with few crossings and straight lines.

Layers are longest paths. A long edge passes through a placeholder in each layer between, so that it is led
around other operators. The order in a layer follows the mean position of neighbours above and below, in turn.
Positions then minimize the squared distance to the neighbours' mean under a least gap, which is isotonic
regression: ``min Σ (x_i − d_i)²  with  x_{i+1} − x_i ≥ g``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLUMN, ROW = 148.0, 64.0  # from one operator to the next beside it, and to the next below it
_EDGE_COLUMN = 26.0  # for a line that only passes a layer
_LONGEST_ROUTED = 24  # layers; a longer edge is drawn straight
_ORDER_SWEEPS, _POSITION_SWEEPS = 6, 8  # after which crossings and positions hardly change

Point = tuple[float, float]


@dataclass(frozen=True)
class GraphLayout:
    """Points of the vertices, and the bends of edges that have any."""

    points: list[Point]
    bends: dict[int, list[Point]]


def layered(count: int, edges: Sequence[tuple[int, int]]) -> GraphLayout:
    """Return positions for ``count`` vertices; edges go from a smaller to a larger index."""
    if not count:
        return GraphLayout([], {})
    levels = _levels(count, edges)
    links, chains = _with_placeholders(levels, edges)
    rows = _ordered(levels, links)
    x = _placed(rows, links, count, len(levels))
    points = [(round(x[v], 1), levels[v] * ROW) for v in range(len(levels))]
    bends = {edge: [points[v] for v in chain] for edge, chain in chains.items()}
    return GraphLayout(points[:count], bends)


def _levels(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return longest paths from above; a vertex without inputs stands right above its first consumer."""
    levels = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        levels[target] = max(levels[target], levels[source] + 1)
    fed = {target for _, target in edges}
    nearest: dict[int, int] = {}
    for source, target in edges:
        if source not in fed:
            nearest[source] = min(nearest.get(source, levels[target]), levels[target])
    for source, level in nearest.items():
        levels[source] = max(0, level - 1)
    return levels


def _with_placeholders(
    levels: list[int], edges: Sequence[tuple[int, int]]
) -> tuple[list[tuple[int, int]], dict[int, list[int]]]:
    """Return edges between adjacent layers, and the placeholders of long edges; ``levels`` grows by these."""
    links: list[tuple[int, int]] = []
    chains: dict[int, list[int]] = {}
    for number, (source, target) in enumerate(edges):
        span = levels[target] - levels[source]
        if span > _LONGEST_ROUTED:
            continue
        last = source
        for level in range(levels[source] + 1, levels[target]):
            levels.append(level)
            chains.setdefault(number, []).append(len(levels) - 1)
            links.append((last, len(levels) - 1))
            last = len(levels) - 1
        links.append((last, target))
    return links, chains


def _neighbours(size: int, links: Sequence[tuple[int, int]]) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(size)]
    below: list[list[int]] = [[] for _ in range(size)]
    for source, target in links:
        above[target].append(source)
        below[source].append(target)
    return above, below


def _ordered(levels: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    above, below = _neighbours(len(levels), links)
    rows: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for vertex, level in enumerate(levels):
        rows[level].append(vertex)
    place = {vertex: index for row in rows for index, vertex in enumerate(row)}
    for sweep in range(_ORDER_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = {v: _mean([place[n] for n in near[v]], place[v]) for v in row}
            row.sort(key=wanted.__getitem__)
            for index, vertex in enumerate(row):
                place[vertex] = index
    return rows


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _placed(
    rows: Sequence[list[int]], links: Sequence[tuple[int, int]], count: int, size: int
) -> list[float]:
    above, below = _neighbours(size, links)
    half = [COLUMN / 2 if vertex < count else _EDGE_COLUMN / 2 for vertex in range(size)]
    x = [0.0] * size
    for row in rows:
        _settle(row, [0.0] * len(row), half, x)
    for turn in range(_POSITION_SWEEPS):
        near = above if turn % 2 == 0 else below
        for row in rows if turn % 2 == 0 else reversed(rows):
            _settle(row, [_mean([x[n] for n in near[v]], x[v]) for v in row], half, x)
    return x


def _settle(row: Sequence[int], wanted: Sequence[float], half: Sequence[float], x: list[float]) -> None:
    """Move a row as close to the wanted positions as gaps allow: pool neighbours that are too close."""
    offset, offsets = 0.0, []
    for i, vertex in enumerate(row):
        offset += half[row[i - 1]] + half[vertex] if i else 0.0
        offsets.append(offset)
    pools: list[tuple[float, int]] = []  # sum, number
    for want, shift in zip(wanted, offsets, strict=True):
        total, number = want - shift, 1
        while pools and pools[-1][0] * number > total * pools[-1][1]:
            before, members = pools.pop()
            total, number = total + before, number + members
        pools.append((total, number))
    index = 0
    for total, number in pools:
        for _ in range(number):
            x[row[index]] = total / number + offsets[index]
            index += 1
