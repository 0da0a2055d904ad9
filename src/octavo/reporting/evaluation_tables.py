"""An evaluation as text: metrics with intervals, and differences in points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.reporting.figures import (
    difference_text,
    interval_text,
    is_decibels,
    metric_text,
    metric_title,
    signed,
)
from octavo.reporting.text import clean, columns, escaped, many, markdown_table, notes_lines, notes_markdown


def evaluation_line(data: Mapping[str, Any]) -> str:
    """Return the first metric on one line."""
    name = clean(Path(str(data["model"])).name, 60)
    scores = ", ".join(f"{metric_title(s['name'])} {score_text(s)}" for s in data["scores"][:1])
    return f"{data['task']} of {name} on {many(int(data['samples']), 'sample')}: {scores or 'no metric'}"


def score_text(score: Mapping[str, Any]) -> str:
    """Return a score with its interval: ``45.1 % (44.0 … 46.2)``."""
    return f"{metric_text(score['name'], score['value'], score['percent'])} ({interval_text(score)})"


def _metric_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    scores, others = data["scores"], data["against_scores"]
    texts = [metric_text(score["name"], score["value"], score["percent"]) for score in scores]
    if not others:
        rows = [
            [metric_title(s["name"]), text, interval_text(s)] for s, text in zip(scores, texts, strict=True)
        ]
        return rows, ["metric", "value", "95 % interval"]
    rows = [
        [
            metric_title(score["name"]),
            metric_text(other["name"], other["value"], other["percent"]),
            text,
            difference_text(difference, score["percent"]),
            _verdict(difference, score["higher_is_better"]),
        ]
        for score, text, other, difference in zip(scores, texts, others, data["differences"], strict=True)
    ]
    return rows, ["metric", "reference", "model", "difference (95 %)", ""]


def _verdict(difference: Mapping[str, Any], higher_is_better: bool) -> str:
    if not difference["significant"]:
        return "no significant difference"
    return "better" if (difference["value"] > 0) == higher_is_better else "worse"


def _head(data: Mapping[str, Any]) -> list[str]:
    lines = [f"{data['task']} on {many(int(data['samples']), 'sample')}", f"model: {clean(data['model'])}"]
    if data["against"] is not None:
        lines.append(f"reference: {clean(data['against'])}")
    return lines


def _class_rows(data: Mapping[str, Any]) -> tuple[list[list[Any]], list[str]]:
    """Return the classes: the worst first, or those first that lost most."""
    name = str(data["per_class"]["figure"])
    percent = not is_decibels(name)
    what = "class" if percent else "output"
    reference = {one["name"]: one["value"] for one in data["per_class"]["against"]}
    rows = []
    for one in data["per_class"]["model"]:
        before = reference.get(one["name"], math.nan)
        lost = one["value"] - before if reference else one["value"]
        cells: list[Any] = [one["name"], metric_text(name, one["value"], percent), int(one["count"])]
        if reference:
            shown = signed(100 * lost, ".1f") if percent else signed(lost, ".1f")
            cells[1:1] = [metric_text(name, before, percent)]
            cells[3:3] = [shown if math.isfinite(lost) else "–"]
        rows.append((lost, one["name"], cells))
    rows.sort(key=lambda row: (math.isnan(row[0]), row[0], row[1]))
    unit = "difference, points" if percent else "difference, dB"
    head = [what, "reference", "model", unit, "count"] if reference else [what, metric_title(name), "count"]
    return [cells for _, _, cells in rows], head


def evaluation_table(data: Mapping[str, Any], *, classes: int = 0) -> str:
    """Return the evaluation as lines; with ``classes`` also so many classes, the worst first."""
    blocks = ["\n".join(_head(data)), columns(*_metric_rows(data))]
    if classes and data["per_class"]["model"]:
        table, titles = _class_rows(data)
        text = columns(table[:classes], titles)
        if len(table) > classes:
            text += f"\n{len(table) - classes} more"
        blocks.append(text)
    blocks += notes_lines(data["notes"])
    return "\n\n".join(blocks)


def evaluations_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each of several models: its metrics, and the first metric's difference to float."""
    first = results[0]
    titles = [metric_title(score["name"]) for score in first["scores"]]
    reference = [metric_text(s["name"], s["value"], s["percent"]) for s in first["against_scores"]]
    rows = [[clean(first["against"]), *(reference or [""] * len(titles)), "reference"]]
    for data in results:
        texts = [metric_text(s["name"], s["value"], s["percent"]) for s in data["scores"]]
        words = ""
        if data["differences"]:
            score, difference = data["scores"][0], data["differences"][0]
            verdict = _verdict(difference, score["higher_is_better"])
            words = f"{difference_text(difference, score['percent'])}, {verdict}"
        rows.append([clean(data["model"]), *texts, words])
    head = f"{first['task']} on {many(int(first['samples']), 'sample')}"
    notes = {note: None for data in results for note in data["notes"]}
    table = columns(rows, ["model", *titles, f"difference of {titles[0]} (95 %)"])
    return "\n\n".join([head, table, *notes_lines(notes)])


def evaluation_markdown(data: Mapping[str, Any], title: str = "Evaluation") -> str:
    """Return the evaluation as a page of Markdown, with all classes."""
    parts = [f"# {escaped(title)}", "\n".join(f"- {escaped(line)}" for line in _head(data))]
    parts.append(markdown_table(*_metric_rows(data)))
    if data["per_class"]["model"]:
        table, titles = _class_rows(data)
        parts += ["## By " + titles[0], markdown_table(table, titles)]
    if data["settings"]:
        settings = [[key, value] for key, value in data["settings"].items()]
        parts += ["## Settings", markdown_table(settings, ["setting", "value"])]
    return "\n\n".join([*parts, *notes_markdown(data["notes"])]) + "\n"
