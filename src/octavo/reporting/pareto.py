"""The Pareto front of trials as a drawing: speed to the right, fidelity upwards, size as the area of a dot.

The drawing is SVG that stands in a page by itself. Colours are those of the text around it, so that it fits
light and dark pages; names are text in it and nothing else. Dots have the numbers of their trials, placed
where they cover neither a dot nor another number. The line joins the trials that no other beats in speed and
fidelity together, so it never turns back to a slower, less faithful one.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.reporting.figures import number
from octavo.reporting.text import clean, size

WIDE, NARROW = 720, 360  # pixels: for a window, and for a phone
HEIGHT = 340  # pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 20, 24, 44  # margins, with room for the numbers of the axes
_SMALLEST_DOT, _LARGEST_DOT = 4.0, 11.0  # radius of a dot
_BEYOND = 3.0  # dB beyond all others at which an infinite SQNR is drawn
_FONT = 12  # pixels
_DIRECTIONS = [(math.cos(a * math.pi / 4), math.sin(a * math.pi / 4)) for a in (-2, -1, -3, 0, 4, 1, 3, 2)]

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Dot:
    """A trial in the drawing; ``number`` is its position among the trials, from 1."""

    number: int
    name: str
    speed: float
    decibels: float
    bytes: int
    is_best: bool


def dots(data: Mapping[str, Any]) -> list[Dot]:
    """Return the trials that have figures, in the order in which they were tried."""
    seen = [
        (position, trial, sqnr)
        for position, trial in enumerate(data["trials"], 1)
        if trial.get("speed") and (sqnr := number(trial.get("sqnr_db"))) is not None and not math.isnan(sqnr)
    ]
    finite = [sqnr for _, _, sqnr in seen if math.isfinite(sqnr)]
    low, high = min(finite, default=0.0) - _BEYOND, max(finite, default=60.0) + _BEYOND
    return [
        Dot(
            position,
            str(trial["name"]),
            float(trial["speed"]["value"]),
            min(max(sqnr, low), high),
            int(trial["bytes"] or 0),
            trial["name"] == data.get("best"),
        )
        for position, trial, sqnr in seen
    ]


def front(found: Sequence[Dot]) -> list[Dot]:
    """Return the dots that no other beats in speed and fidelity, the slowest and most faithful first."""
    kept: list[Dot] = []
    for dot in sorted(found, key=lambda dot: (-dot.speed, -dot.decibels)):
        if not kept or dot.decibels > kept[-1].decibels:
            kept.append(dot)
    return kept[::-1]


def front_svg(data: Mapping[str, Any], width: int = WIDE) -> str:
    """Return the drawing; empty where nothing was measured."""
    found = dots(data)
    if not found:
        return ""
    across = _Axis([dot.speed for dot in found] + [1.0], _LEFT, width - _RIGHT)
    up = _Axis([dot.decibels for dot in found], HEIGHT - _BOTTOM, _TOP)
    best = front(found)
    line = " ".join(f"{across.at(dot.speed):.1f},{up.at(dot.decibels):.1f}" for dot in best)
    largest = max(dot.bytes for dot in found) or 1
    circles = [
        (
            across.at(dot.speed),
            up.at(dot.decibels),
            _SMALLEST_DOT + (_LARGEST_DOT - _SMALLEST_DOT) * math.sqrt(dot.bytes / largest),
        )
        for dot in found
    ]
    words = [_label(dot, width) for dot in found]
    boxes = _placed(words, circles, (_LEFT, _TOP, width - 4.0, HEIGHT - _BOTTOM))
    parts = [
        *_grid(across, up, width),
        f'<polyline points="{line}" fill="none" stroke="currentColor" stroke-opacity="0.5"/>',
        *(_circle(dot, circle, dot in best) for dot, circle in zip(found, circles, strict=True)),
        *(
            _text_at(text, box, bold=dot.is_best)
            for dot, text, box in zip(found, words, boxes, strict=True)
            if box is not None
        ),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="100%" role="img"'
        f' font-size="{_FONT}" fill="currentColor"><title>{_text(_sentence(found, best))}</title>'
        f"{''.join(parts)}</svg>"
    )


def _label(dot: Dot, width: int) -> str:
    """Return the number of a dot; the chosen one has its name as well, where there is room."""
    name = f" {clean(dot.name, 28)}" if dot.is_best and width >= WIDE else ""
    return f"{dot.number}{name}"


def _placed(
    words: Sequence[str], circles: Sequence[tuple[float, float, float]], frame: Box
) -> list[Box | None]:
    """Return a box for each label beside its dot, free of dots and other labels; None where there is none."""
    taken: list[Box] = [(x - r, y - r, x + r, y + r) for x, y, r in circles]
    found: list[Box | None] = []
    for text, (x, y, radius) in zip(words, circles, strict=True):
        wide, high = 0.62 * _FONT * len(text), float(_FONT)
        place = None
        for gap in (3.0, 8.0, 14.0, 22.0):
            for dx, dy in _DIRECTIONS:
                middle_x = x + dx * (radius + gap + wide / 2)
                middle_y = y + dy * (radius + gap + high / 2)
                box = (middle_x - wide / 2, middle_y - high / 2, middle_x + wide / 2, middle_y + high / 2)
                if place is None and _inside(box, frame) and not any(_overlap(box, one) for one in taken):
                    place = box
        found.append(place)
        taken += [place] if place is not None else []
    return found


def _inside(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


class _Axis:
    """A scale from numbers to pixels, with some room at both ends."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        low, high = min(values), max(values)
        room = 0.08 * (high - low) or 0.5
        self.low, self.high, self.start, self.stop = low - room, high + room, start, stop

    def at(self, value: float) -> float:
        """Return the position of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return round numbers along the axis, so many that their texts do not touch."""
        fewest = max(2.0, abs(self.stop - self.start) / 70)
        step = 10 ** math.floor(math.log10((self.high - self.low) / 2))
        while (self.high - self.low) / step > fewest:
            step *= 2
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step) + 1)]


def _grid(across: _Axis, up: _Axis, width: int) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, width - _RIGHT
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
    found.append(f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">speed, × float</text>')
    found.append(f'<text x="4" y="{_TOP - 10}" text-anchor="start">SQNR, dB</text>')
    return found


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor"'
        ' stroke-opacity="0.12"/>'
    )


def _circle(dot: Dot, circle: tuple[float, float, float], on_front: bool) -> str:
    x, y, radius = circle
    opacity = 0.9 if dot.is_best else 0.45 if on_front else 0.15
    told = f"{dot.number} {dot.name}: {dot.speed:.2f} × as fast, {dot.decibels:.1f} dB, {size(dot.bytes)}"
    return (
        f'<g><title>{_text(told)}</title><circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        f' fill-opacity="{opacity}" stroke="currentColor"/></g>'
    )


def _text_at(words: str, box: Box, *, bold: bool) -> str:
    weight = ' font-weight="700"' if bold else ""
    return f'<text x="{box[0]:.1f}" y="{box[3] - 2:.1f}"{weight}>{_text(words)}</text>'


def _sentence(found: Sequence[Dot], best: Sequence[Dot]) -> str:
    names = ", ".join(dot.name for dot in best)
    return f"{len(found)} trials by speed and fidelity; no other beats {names}."


def _text(words: str) -> str:
    return html.escape(clean(words, 1000))
