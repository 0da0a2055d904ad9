"""The Pareto front of a search as a drawing: speed to the right, fidelity upwards, size as the area of a dot.

The drawing is SVG that stands in a page by itself. Colours are those of the text around it, so that it fits
light and dark pages; names are text in it and nothing else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.reporting.text import clean, size

WIDTH, HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 24, 16, 44
_LEAST, _MOST = 4.0, 12.0  # radius of a dot
_ABOVE = 3.0  # dB at which an answer without error is drawn above all others


@dataclass(frozen=True)
class Dot:
    """A trial in the drawing."""

    name: str
    speed: float
    decibels: float
    bytes: int
    on_front: bool
    is_best: bool


def dots(data: Mapping[str, Any]) -> list[Dot]:
    """The trials that have figures, in the order in which they were tried."""
    front = set(data.get("front") or ())
    seen = [t for t in data["trials"] if t.get("speed") and _number(t.get("sqnr_db")) is not None]
    finite = [d for t in seen if math.isfinite(d := _number(t["sqnr_db"]) or 0.0)]
    top = max(finite, default=60.0) + _ABOVE
    low = min(finite, default=0.0) - _ABOVE
    return [
        Dot(
            str(t["name"]),
            float(t["speed"]["value"]),
            min(max(_number(t["sqnr_db"]) or 0.0, low), top),
            int(t["bytes"] or 0),
            t["name"] in front,
            t["name"] == data.get("best"),
        )
        for t in seen
    ]


def _number(value: Any) -> float | None:
    """A figure, also where JSON had to write its name."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(found) else found


def front_svg(data: Mapping[str, Any]) -> str:
    """The drawing; empty where nothing was measured."""
    found = dots(data)
    if not found:
        return ""
    across = _Axis([dot.speed for dot in found] + [1.0], _LEFT, WIDTH - _RIGHT)
    up = _Axis([dot.decibels for dot in found], HEIGHT - _BOTTOM, _TOP)
    line = sorted((dot for dot in found if dot.on_front), key=lambda dot: dot.speed)
    path = " ".join(f"{across.at(dot.speed):.1f},{up.at(dot.decibels):.1f}" for dot in line)
    largest = max(dot.bytes for dot in found) or 1
    parts = [
        *_grid(across, up),
        f'<polyline points="{path}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>',
        *(_mark(dot, across.at(dot.speed), up.at(dot.decibels), dot.bytes / largest) for dot in found),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img"'
        f' font-size="12" fill="currentColor"><title>{_text(_sentence(found))}</title>{"".join(parts)}</svg>'
    )


class _Axis:
    """Numbers to places, with some room at both ends."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        low, high = min(values), max(values)
        room = 0.08 * (high - low) or 0.5
        self.low, self.high, self.start, self.stop = low - room, high + room, start, stop

    def at(self, value: float) -> float:
        """The place of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round numbers along the axis."""
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        while (self.high - self.low) / step > 8:
            step *= 2
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step) + 1)]


def _grid(across: _Axis, up: _Axis) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    found = []
    for value in across.ticks():
        x = across.at(value)
        found.append(_line(x, _TOP, x, bottom))
        found.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{value:g}</text>')
    for value in up.ticks():
        y = up.at(value)
        found.append(_line(_LEFT, y, right, y))
        found.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + right) / 2
    found.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">speed, times float</text>')
    found.append(f'<text x="{_LEFT}" y="{_TOP - 4}" text-anchor="start">SQNR, dB</text>')
    return found


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor"'
        ' stroke-opacity="0.12"/>'
    )


def _mark(dot: Dot, x: float, y: float, share: float) -> str:
    radius = _LEAST + (_MOST - _LEAST) * math.sqrt(share)
    opacity = 0.9 if dot.is_best else 0.45 if dot.on_front else 0.15
    told = f"{dot.name}: {dot.speed:.2f} × as fast, {dot.decibels:.1f} dB, {size(dot.bytes)}"
    label = (
        f'<text x="{x:.1f}" y="{y - radius - 4:.1f}" text-anchor="middle">{_text(clean(dot.name, 40))}</text>'
        if dot.on_front
        else ""
    )
    return (
        f'<g><title>{_text(told)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        f' fill-opacity="{opacity}" stroke="currentColor"/>{label}</g>'
    )


def _sentence(found: Sequence[Dot]) -> str:
    front = ", ".join(dot.name for dot in found if dot.on_front)
    return f"{len(found)} trials by speed and fidelity; no other beats {front}."


def _text(words: str) -> str:
    return html.escape(clean(words, 1000))
