"""The drawing of a graph: operators with their positions, what became of them, their error and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.model.graph.operators import CONVERSIONS_OR_DYNAMIC
from octavo.reporting.figures import number
from octavo.reporting.html.operator_graph import known_name
from octavo.reporting.html.report_parts import Side

# ---- Where each operator is drawn: in layers from the inputs down, with few crossings and straight lines
#
# Layers are longest paths. A long edge passes through a placeholder in each layer between, so that it is led
# around other operators. The order in a layer follows the mean position of its neighbours above and below, in
# turn.
# Positions then minimize the squared distance to the neighbours' mean under a least gap, which is isotonic
# regression: ``min Σ (x_i − d_i)²  with  x_{i+1} − x_i ≥ g``.

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
    for route, (source, target) in enumerate(edges):
        span = levels[target] - levels[source]
        if span > _LONGEST_ROUTED:
            continue
        last = source
        for level in range(levels[source] + 1, levels[target]):
            levels.append(level)
            chains.setdefault(route, []).append(len(levels) - 1)
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


MAX_DRAWN = 6000  # operators; a larger graph is only listed
_ENDS = ("Input", "Output")


def drawing(side: Side) -> dict[str, Any] | None:
    """Return nodes, edges and positions; None where nothing is known of the graph."""
    graph = side.details.get("graph")
    if not graph:
        return None
    edges = [(int(a), int(b)) for a, b in graph["edges"]]
    rows = operators(side)
    drawn = len(rows) <= MAX_DRAWN
    layout = layered(len(rows), edges) if drawn else None
    if layout is not None:
        for row, point in zip(rows, layout.points, strict=True):
            row["x"], row["y"] = point
    bends = layout.bends if layout is not None else {}
    lines = [[a, b, *(c for point in bends.get(i, ()) for c in point)] for i, (a, b) in enumerate(edges)]
    found = {"nodes": rows, "edges": lines if drawn else [], "drawn": drawn}
    is_timed = any("us" in row for row in rows)
    return found | ({"us": round(1e6 * whole_time(side), 1)} if is_timed else {})


def operators(side: Side) -> list[dict[str, Any]]:
    """Return each operator: what became of it, its dB alone and up to there, its microseconds."""
    nodes = (side.details.get("graph") or {}).get("nodes") or ()
    states, errors, times = _States(side.made), _errors(side), _times(side, {node["name"] for node in nodes})
    rows = []
    for node in nodes:
        row = {"name": node["name"], "op": node["op_type"], **states.of(node)}
        row |= _first(errors, [node["name"], *node.get("outputs", ())])
        if node["name"] in times:
            row["us"] = round(1e6 * times[node["name"]], 1)
        rows.append(row)
    return rows


class _States:
    """What became of each operator."""

    def __init__(self, made: Mapping[str, Any]) -> None:
        plan = made.get("plan") or {}
        self._nodes = plan.get("nodes") or {}
        self._fused = plan.get("fused") or {}
        self._skipped = {one["node"]: one["reason"] for one in plan.get("skipped") or ()}
        self._added = {one["bias_add"] for one in self._nodes.values() if one.get("bias_add")}

    def of(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state, a reason or the lowering, and the op type that the operator had."""
        name = node["name"]
        if node["op_type"] in _ENDS:
            return {"state": "end"}
        if name in self._nodes:
            was, lowering = self._nodes[name]["op_type"], self._nodes[name]["lowering"]
            why = {"why": f"becomes {lowering}"} if lowering != was else {}
            return {"state": "quantized", "op": was} | why
        if name in self._skipped:
            return {"state": "float", "why": self._skipped[name]}
        if name in self._fused:
            return {"state": "fused", "why": self._fused[name]}
        if name in self._added:
            return {"state": "quantized", "why": "the bias of the linear operator before it"}
        return {"state": "quantized" if node.get("integer") else "other"}


def _errors(side: Side) -> dict[str, dict[str, float]]:
    """Return local and accumulated dB by name of node and of tensor."""
    found: dict[str, dict[str, float]] = {}
    for tensor in side.part("comparison").get("tensors") or ():
        row = {}
        for key, source in (("local", "local"), ("total", "accumulated")):
            value = number((tensor.get(source) or {}).get("sqnr"))
            if value is not None and not math.isnan(value):
                row[key] = round(max(-200.0, min(200.0, value)), 2)
        for name in (tensor["name"], tensor.get("node")):
            if row and name:
                found.setdefault(name, row)
    return found


def _first(errors: Mapping[str, dict[str, float]], names: list[str]) -> dict[str, float]:
    return next((errors[name] for name in names if name in errors), {})


def _profile(side: Side) -> list[dict[str, Any]]:
    models = side.part("bench").get("models") or ()
    return list(models[-1].get("nodes") or ()) if models else []


def whole_time(side: Side) -> float:
    """Return the seconds of all nodes that ran, also of those that belong to no operator."""
    return sum(float(node["seconds"]) for node in _profile(side))


def _times(side: Side, known: set[str]) -> dict[str, float]:
    """Return seconds by operator: a fused node counts for the operator whose name the runtime kept."""
    found: dict[str, float] = {}
    for node in _profile(side):
        if node["op_type"] in CONVERSIONS_OR_DYNAMIC:
            continue
        name = known_name(node["name"], known)
        if name not in known:
            continue
        found[name] = found.get(name, 0.0) + float(node["seconds"])
    return found
