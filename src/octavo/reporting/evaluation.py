"""An evaluation as text: figures with intervals, and differences in points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.reporting.text import clean, columns, many, markdown_table

MOST_CLASSES = 20  # lines of classes before the rest is only counted


def figure_text(value: float, percent: bool) -> str:
    """``71.8 %`` or ``0.8672``."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "–"
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"


def difference_text(difference: Mapping[str, Any], percent: bool) -> str:
    """``−0.3 points ± 0.4``."""
    value, half = float(difference["value"]), float(difference["half_width"])
    if not math.isfinite(value):
        return "–"
    if percent:
        return f"{_signed(100 * value, '.2f')} points ± {100 * half:.2f}"
    return f"{_signed(value, '.4g')} ± {half:.2g}"


def _signed(value: float, form: str) -> str:
    text = format(abs(value), form)
    if float(text) == 0.0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def _interval(score: Mapping[str, Any]) -> str:
    percent = bool(score["percent"])
    low, high = (figure_text(float(score[key]), percent).removesuffix(" %") for key in ("low", "high"))
    return f"{low} … {high}"


def _rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    scores, others = data["scores"], data["against_scores"]
    if not others:
        rows = [
            [score["name"], figure_text(score["value"], score["percent"]), _interval(score)]
            for score in scores
        ]
        return rows, ["figure", "value", "95 % interval"]
    rows = [
        [
            score["name"],
            figure_text(other["value"], other["percent"]),
            figure_text(score["value"], score["percent"]),
            difference_text(difference, score["percent"]),
            _verdict(difference, score["higher_is_better"]),
        ]
        for score, other, difference in zip(scores, others, data["differences"], strict=True)
    ]
    return rows, ["figure", "reference", "model", "difference (95 %)", ""]


def _verdict(difference: Mapping[str, Any], higher_is_better: bool) -> str:
    if not difference["significant"]:
        return "no difference shown"
    return "better" if (difference["value"] > 0) == higher_is_better else "worse"


def _head(data: Mapping[str, Any]) -> list[str]:
    lines = [f"{data['task']} on {many(int(data['samples']), 'sample')}", f"model: {clean(data['model'])}"]
    if data["against"] is not None:
        lines.append(f"reference: {clean(data['against'])}")
    return lines


def _classes(data: Mapping[str, Any]) -> tuple[list[list[Any]], list[str]]:
    """The worst classes, or those that lost most."""
    own, other = data["per_class"]["model"], data["per_class"]["against"]
    percent = data["per_class"]["figure"] != "sqnr_db"
    if other:
        before = {one["name"]: one["value"] for one in other}
        rows = [(one["value"] - before.get(one["name"], math.nan), one) for one in own]
        rows.sort(key=lambda row: (row[0], row[1]["name"]))
        table = [
            [
                one["name"],
                figure_text(before.get(one["name"], math.nan), percent),
                figure_text(one["value"], percent),
                _signed(100 * lost, ".2f") if percent else _signed(lost, ".3g"),
                int(one["count"]),
            ]
            for lost, one in rows
        ]
        return table, ["class", "reference", "model", "difference", "count"]
    ranked = sorted(own, key=lambda one: (one["value"], one["name"]))
    table = [[one["name"], figure_text(one["value"], percent), int(one["count"])] for one in ranked]
    what = "output" if data["per_class"]["figure"] == "sqnr_db" else "class"
    return table, [what, str(data["per_class"]["figure"]), "count"]


def evaluation_table(data: Mapping[str, Any], *, classes: int = 0) -> str:
    """The evaluation as lines; with ``classes`` also so many classes, the worst first."""
    rows, head = _rows(data)
    blocks = ["\n".join(_head(data)), columns(rows, head)]
    if classes and data["per_class"]["model"]:
        table, titles = _classes(data)
        text = columns(table[:classes], titles)
        if len(table) > classes:
            text += f"\n{len(table) - classes} more"
        blocks.append(text)
    blocks += [f"note: {clean(note, 600)}" for note in data["notes"]]
    return "\n\n".join(blocks)


def evaluation_markdown(data: Mapping[str, Any], title: str = "Evaluation") -> str:
    """The evaluation as a page of Markdown, all classes included."""
    rows, head = _rows(data)
    parts = [f"# {_escaped(title)}", "\n".join(f"- {_escaped(line)}" for line in _head(data))]
    parts.append(markdown_table(rows, head))
    if data["per_class"]["model"]:
        table, titles = _classes(data)
        parts += ["## By " + titles[0], markdown_table(table, titles)]
    if data["settings"]:
        settings: Sequence[Sequence[object]] = [[key, value] for key, value in data["settings"].items()]
        parts += ["## Settings", markdown_table(settings, ["setting", "value"])]
    if data["notes"]:
        parts += ["## Notes", "\n".join(f"- {_escaped(note)}" for note in data["notes"])]
    return "\n\n".join(parts) + "\n"


def _escaped(text: object) -> str:
    return clean(text, 600).replace("<", "&lt;")
