"""Measurements as text: figures side by side, time by op type, and operators that did not fuse."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.reporting.figures import NONE, speed_text, time_text
from octavo.reporting.text import (
    clean,
    columns,
    escaped,
    many,
    markdown_table,
    notes_lines,
    notes_markdown,
    size,
)

_LISTED_OPS, _LISTED_UNFUSED = 15, 10  # rows in the terminal; the rest is only counted
_UNFUSED_HEAD = ["node", "op type", "time", "conversions"]


def bench_line(data: Mapping[str, Any]) -> str:
    """Return the latency of each model, and how fast the second is, on one line."""
    parts = [
        f"{clean(Path(str(m['name'])).name, 60)} {time_text(m['latency']['median'])}" for m in data["models"]
    ]
    return ", ".join(parts) + (f"; {speed_text(data['ratio'], ' as fast')}" if data["ratio"] else "")


def _titles(data: Mapping[str, Any]) -> tuple[str, ...]:
    count = len(data["models"])
    if count < 3:
        return ("first", "second") if count == 2 else ("model",)
    return tuple(f"model {number}" for number in range(1, count + 1))


def _head(data: Mapping[str, Any]) -> list[str]:
    threads = data["threads"] if data["threads"] is not None else "the runtime's choice"
    lines = [
        f"{title}: {clean(model['name'])}" for title, model in zip(_titles(data), data["models"], strict=True)
    ]
    clock = ", processor time" if data["clock"] == "cpu" else ""
    rounds = many(int(data["rounds"]), "round")
    return [*lines, f"{rounds}, batch {data['batch']}, threads: {threads}, {clean(data['data'])}{clock}"]


def _main_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    models = data["models"]
    rows = [
        ["latency", *(time_text(m["latency"]["median"]) for m in models)],
        [
            "  quartiles",
            *(f"{time_text(m['latency']['low'])} … {time_text(m['latency']['high'])}" for m in models),
        ],
        ["load time", *(time_text(m["load_seconds"]) for m in models)],
        ["memory", *(NONE if m["memory_bytes"] is None else size(m["memory_bytes"]) for m in models)],
        ["file size", *(size(m["file_bytes"]) for m in models)],
    ]
    if len(models) == 1:
        return rows, ["", "model"]
    if len(models) > 2:
        return _several_rows(data)
    first, second = models
    rows[0].append(speed_text(data["ratio"], " as fast"))
    rows[1].append("")
    for row, key in zip(rows[2:], ("load_seconds", "memory_bytes", "file_bytes"), strict=True):
        known = first[key] and second[key] is not None
        row.append(f"{second[key] / first[key]:.2f} ×" if known else "")
    return rows, ["", "first", "second", "second to first"]


def _several_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return a row for each of more than two models, with its speed to the first."""
    rows = []
    for index, (title, model) in enumerate(zip(_titles(data), data["models"], strict=True)):
        rows.append(
            [
                title,
                time_text(model["latency"]["median"]),
                speed_text(data["ratios"][index - 1]) if index else NONE,
                time_text(model["load_seconds"]),
                NONE if model["memory_bytes"] is None else size(model["memory_bytes"]),
                size(model["file_bytes"]),
            ]
        )
    return rows, ["", "latency", "speed to model 1", "load time", "memory", "file size"]


def _decoding_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return a row for each language model with a cache: reading a prompt, and writing tokens."""
    rows = []
    for title, model in zip(_titles(data), data["models"], strict=True):
        found = model.get("decoding")
        if found is None:
            return [], []
        first, token = found["prefill"]["median"], found["token"]["median"]
        rows.append(
            [
                title,
                time_text(first),
                f"{found['prompt'] / first:.0f}",
                speed_text(found["prefill_ratio"]) if found["prefill_ratio"] else NONE,
                f"{1 / token:.1f}",
                speed_text(found["token_ratio"]) if found["token_ratio"] else NONE,
                size(found["cache_bytes"]),
            ]
        )
    prompt = data["models"][0]["decoding"]["prompt"]
    head = ["", f"first token ({prompt} tokens read)", "read tokens/s", "to model 1", "written tokens/s"]
    return rows, [*head, "to model 1", f"cache ({prompt + 1} tokens)"]


def _op_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    """Return op types, the longest first, both models side by side."""
    tables = [{op["op_type"]: op for op in model["ops"]} for model in data["models"]]
    names = sorted(
        {name for table in tables for name in table},
        key=lambda name: -max(table[name]["seconds"] if name in table else 0.0 for table in tables),
    )
    rows = []
    for name in names:
        found = [table.get(name) for table in tables]
        cells = [(str(op["count"]), time_text(op["seconds"])) if op else ("", "") for op in found]
        rows.append([name, *(cell for pair in cells for cell in pair)])
    head = [word for title in _titles(data) for word in ("nodes", title)]
    return rows, ["op type", *head]


def _unfused(model: Mapping[str, Any]) -> tuple[str, list[list[str]]]:
    """Return a title and a row for each float operator that is fed by DequantizeLinear."""
    rows = [
        [one["node"], one["op_type"], time_text(one["seconds"]), time_text(one["conversion_seconds"])]
        for one in model["unfused"]
    ]
    cost = sum(one["seconds"] + one["conversion_seconds"] for one in model["unfused"])
    total = sum(op["seconds"] for op in model["ops"])
    share = f", {100 * cost / total:.0f} % of the time" if total else ""
    count = many(len(rows), "float operator")
    title = f"not fused in {clean(model['name'])}: {count} fed by DequantizeLinear, {time_text(cost)}{share}"
    return title, rows


def bench_table(data: Mapping[str, Any]) -> str:
    """Return the measurements as lines."""
    blocks = ["\n".join(_head(data)), columns(*_main_rows(data))]
    spoken, head = _decoding_rows(data)
    if spoken:
        blocks.append(columns(spoken, head))
    ops, titles = _op_rows(data)
    if ops:
        blocks.append(_shortened(ops, titles, _LISTED_OPS, "more op type"))
    for model in data["models"]:
        title, rows = _unfused(model)
        if rows:
            blocks.append(f"{title}\n{_shortened(rows, _UNFUSED_HEAD, _LISTED_UNFUSED, 'more operator')}")
    blocks += notes_lines(data["notes"])
    return "\n\n".join(blocks)


def _shortened(rows: list[list[str]], head: list[str], limit: int, rest: str) -> str:
    more = f"\n{many(len(rows) - limit, rest)}" if len(rows) > limit else ""
    return columns(rows[:limit], head) + more


def bench_markdown(data: Mapping[str, Any], title: str = "Measurement") -> str:
    """Return the measurements as a page of Markdown, in full."""
    parts = [f"# {escaped(title)}", "\n".join(f"- {escaped(line)}" for line in _head(data))]
    parts.append(markdown_table(*_main_rows(data)))
    spoken, head = _decoding_rows(data)
    if spoken:
        parts += ["## Prompt and tokens", markdown_table(spoken, head)]
    ops, titles = _op_rows(data)
    if ops:
        parts += ["## Time by op type", markdown_table(ops, titles)]
    for model in data["models"]:
        heading, rows = _unfused(model)
        if rows:
            parts += ["## Not fused", escaped(heading), markdown_table(rows, _UNFUSED_HEAD)]
    return "\n\n".join([*parts, *notes_markdown(data["notes"])]) + "\n"
