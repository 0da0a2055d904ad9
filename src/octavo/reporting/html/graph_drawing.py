"""The drawing of a graph: operators with their positions, what became of them, their error and time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.model.graph.operators import CONVERSIONS_OR_DYNAMIC
from octavo.reporting.figures import number
from octavo.reporting.html.graph_layout import layered
from octavo.reporting.html.operator_graph import known_name
from octavo.reporting.html.report_parts import Side

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
