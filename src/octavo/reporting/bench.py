"""A measurement as text: figures side by side, time by op type, and what did not fuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.reporting.text import clean, columns, many, markdown_table, size

MOST_OPS, MOST_UNFUSED = 15, 10  # lines before the rest is only summed up


def time_text(seconds: float | None) -> str:
    """``1.24 ms``, ``85 µs``, ``2.1 s``."""
    if seconds is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1 or unit == "µs":
            value = seconds * scale
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return ""


def ratio_text(ratio: Mapping[str, Any]) -> str:
    """``1.85 × as fast (1.80 … 1.91)``."""
    return f"{ratio['value']:.2f} × as fast ({ratio['low']:.2f} … {ratio['high']:.2f})"


def _words(data: Mapping[str, Any]) -> tuple[str, ...]:
    return ("first", "second") if len(data["models"]) == 2 else ("model",)


def _share(first: float | None, second: float | None) -> str:
    return f"{second / first:.2f} ×" if first and second is not None else ""


def _main_rows(data: Mapping[str, Any]) -> tuple[list[list[str]], list[str]]:
    models = data["models"]
    rows = [
        ["latency", *(time_text(m["latency"]["median"]) for m in models)],
        [
            "  quartiles",
            *(f"{time_text(m['latency']['low'])} … {time_text(m['latency']['high'])}" for m in models),
        ],
        ["load time", *(time_text(m["load_seconds"]) for m in models)],
        ["memory", *("–" if m["memory_bytes"] is None else size(m["memory_bytes"]) for m in models)],
        ["file size", *(size(m["file_bytes"]) for m in models)],
    ]
    if len(models) == 1:
        return rows, ["", "model"]
    first, second = models
    rows[0].append(ratio_text(data["ratio"]))
    rows[1].append("")
    for row, key in zip(rows[2:], ("load_seconds", "memory_bytes", "file_bytes"), strict=True):
        row.append(_share(first[key], second[key]))
    return rows, ["", "first", "second", "second to first"]


def _head(data: Mapping[str, Any]) -> list[str]:
    threads = data["threads"] if data["threads"] is not None else "the runtime's choice"
    words = _words(data)
    lines = [f"{word}: {clean(model['name'])}" for word, model in zip(words, data["models"], strict=True)]
    clock = ", processor time" if data["clock"] == "cpu" else ""
    rounds = many(int(data["rounds"]), "round")
    return [*lines, f"{rounds}, batch {data['batch']}, threads: {threads}, {clean(data['data'])}{clock}"]


def _op_rows(data: Mapping[str, Any]) -> tuple[list[list[Any]], list[str]]:
    """Op types, the longest first, both models side by side."""
    tables = [{op["op_type"]: op for op in model["ops"]} for model in data["models"]]
    names = sorted(
        {name for table in tables for name in table},
        key=lambda name: -max(table[name]["seconds"] if name in table else 0.0 for table in tables),
    )
    rows: list[list[Any]] = []
    for name in names:
        row: list[Any] = [name]
        for table in tables:
            op = table.get(name)
            row += ["" if op is None else str(op["count"]), "" if op is None else time_text(op["seconds"])]
        rows.append(row)
    head = ["op type"]
    for word in _words(data):
        head += ["nodes", word]
    return rows, head


def _unfused_rows(model: Mapping[str, Any]) -> list[list[Any]]:
    return [
        [one["node"], one["op_type"], time_text(one["seconds"]), time_text(one["conversion_seconds"])]
        for one in model["unfused"]
    ]


_UNFUSED_HEAD = ["node", "op type", "time", "conversions"]


def _unfused_title(model: Mapping[str, Any]) -> str:
    cost = sum(one["seconds"] + one["conversion_seconds"] for one in model["unfused"])
    total = sum(op["seconds"] for op in model["ops"])
    share = f", {100 * cost / total:.0f} % of the time" if total else ""
    count = many(len(model["unfused"]), "float operator")
    return (
        f"did not fuse in {clean(model['name'])}: {count} fed by DequantizeLinear, {time_text(cost)}{share}"
    )


def bench_table(data: Mapping[str, Any]) -> str:
    """The measurement as lines."""
    rows, head = _main_rows(data)
    blocks = ["\n".join(_head(data)), columns(rows, head)]
    ops, titles = _op_rows(data)
    if ops:
        text = columns(ops[:MOST_OPS], titles)
        blocks.append(
            text + (f"\n{many(len(ops) - MOST_OPS, 'more op type')}" if len(ops) > MOST_OPS else "")
        )
    for model in data["models"]:
        found = _unfused_rows(model)
        if found:
            text = columns(found[:MOST_UNFUSED], _UNFUSED_HEAD)
            more = f"\n{len(found) - MOST_UNFUSED} more" if len(found) > MOST_UNFUSED else ""
            blocks.append(f"{_unfused_title(model)}\n{text}{more}")
    blocks += [f"note: {clean(note, 600)}" for note in data["notes"]]
    return "\n\n".join(blocks)


def bench_markdown(data: Mapping[str, Any], title: str = "Measurement") -> str:
    """The measurement as a page of Markdown, in full."""
    rows, head = _main_rows(data)
    parts = [f"# {_escaped(title)}", "\n".join(f"- {_escaped(line)}" for line in _head(data))]
    parts.append(markdown_table(rows, head))
    ops, titles = _op_rows(data)
    if ops:
        parts += ["## Time by op type", markdown_table(ops, titles)]
    for model in data["models"]:
        found: Sequence[Sequence[object]] = _unfused_rows(model)
        if found:
            parts += ["## Not fused", _escaped(_unfused_title(model)), markdown_table(found, _UNFUSED_HEAD)]
    if data["notes"]:
        parts += ["## Notes", "\n".join(f"- {_escaped(note)}" for note in data["notes"])]
    return "\n\n".join(parts) + "\n"


def _escaped(text: object) -> str:
    return clean(text, 600).replace("<", "&lt;")
