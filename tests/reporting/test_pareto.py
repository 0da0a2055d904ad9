"""The drawing of the Pareto front: well-formed, complete, and safe whatever names are in it."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from octavo.reporting.pareto import NARROW, WIDE, dots, front, front_svg

SVG = "{http://www.w3.org/2000/svg}"


def trial(name: str, speed: float | None, decibels: Any, size: int = 1000) -> dict[str, Any]:
    measured = {"value": speed, "low": speed, "high": speed} if speed is not None else None
    return {"name": name, "speed": measured, "sqnr_db": decibels, "bytes": size}


def search(*trials: dict[str, Any], front: tuple[str, ...] = (), best: str = "") -> dict[str, Any]:
    return {"trials": list(trials), "front": list(front), "best": best}


def test_every_trial_with_figures_is_a_dot_and_the_front_a_line() -> None:
    data = search(
        trial("a", 2.0, 30.0), trial("b", 1.0, 50.0), trial("failed", None, None), front=("a", "b"), best="a"
    )
    root = ElementTree.fromstring(front_svg(data))
    assert len(root.findall(f".//{SVG}circle")) == 2
    line = root.find(f".//{SVG}polyline")
    assert line is not None
    assert len(line.attrib["points"].split()) == 2


def test_the_front_never_turns_back_to_a_beaten_trial() -> None:
    small = trial("small, slower and further off", 1.2, 25.0, 100)
    data = search(
        trial("fast", 2.0, 30.0), trial("close", 1.0, 50.0), small, front=("fast", "close", "small")
    )
    assert [dot.name for dot in front(dots(data))] == ["close", "fast"]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_labels_overlap_neither_each_other_nor_dots(width: int) -> None:
    trials = [trial(f"t{i}", 2.0 + 0.01 * (i % 3), 30.0 + 0.2 * (i // 3)) for i in range(12)]
    root = ElementTree.fromstring(front_svg(search(*trials, best="t4"), width))
    texts = [t for t in root.findall(f".//{SVG}text") if (t.text or "").split()[0] in map(str, range(1, 13))]
    labels = [t for t in texts if t.get("text-anchor") is None]
    boxes = [(float(t.attrib["x"]), float(t.attrib["y"]), 7.4 * len(t.text or "")) for t in labels]
    for i, (x, y, wide) in enumerate(boxes):
        for other_x, other_y, other_wide in boxes[:i]:
            assert x >= other_x + other_wide or other_x >= x + wide or abs(y - other_y) >= 12


def test_faster_is_to_the_right_more_faithful_is_higher_larger_is_larger() -> None:
    data = search(trial("fast", 2.0, 20.0, 400), trial("close", 1.0, 40.0, 100))
    fast, close = ElementTree.fromstring(front_svg(data)).findall(f".//{SVG}circle")
    assert float(fast.attrib["cx"]) > float(close.attrib["cx"])
    assert float(fast.attrib["cy"]) > float(close.attrib["cy"])
    assert float(fast.attrib["r"]) > float(close.attrib["r"])


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x>', "a\u202eb & c"])
def test_a_name_is_text_and_nothing_else(name: str) -> None:
    drawing = front_svg(search(trial(name, 1.0, 20.0), front=(name,), best=name))
    root = ElementTree.fromstring(drawing)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg", "title", "line", "text", "polyline", "g", "circle",
    }  # fmt: skip
    assert "\u202e" not in drawing


@pytest.mark.parametrize("value", [float("inf"), "inf", "-inf"])
def test_a_figure_without_end_is_drawn_at_the_edge(value: Any) -> None:
    found = dots(search(trial("exact", 1.0, value), trial("other", 1.2, 20.0)))
    assert all(abs(dot.decibels) < 100 for dot in found)
    assert ElementTree.fromstring(front_svg(search(trial("exact", 1.0, value)))) is not None


def test_without_figures_there_is_no_drawing() -> None:
    assert front_svg(search(trial("failed", None, None))) == ""
