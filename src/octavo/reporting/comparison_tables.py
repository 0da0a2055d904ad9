"""A comparison as tables, in text and in Markdown, and findings of ``doctor`` and ``lint`` as lists."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.reporting.figures import NONE, decibels_text, number
from octavo.reporting.text import clean, columns, many, markdown_table, notes_lines, some

Data = Mapping[str, Any]
_TENSOR_HEAD = ("local dB", "model dB", "cosine", "max error", "clipped", "rounding", "used", "op", "tensor")
_IN_TERMINAL = (0, 1, 4, 5, 6, 7, 8)  # of these columns: those that 80 characters hold beside a name
_OUTPUT_HEAD = ("output", "SQNR dB", "95 % interval", "cosine", "max error", "optimized vs not, dB")
_CULPRIT_HEAD = ("tensor", "kind", "seen at", "local dB", "why", "try")
_NO_CULPRIT = "every operator by itself is close to float"


def comparison_line(data: Data) -> str:
    """Return the worst output and the number of culprits on one line."""
    found = [value for output in data["outputs"] if (value := _sqnr(output["errors"])) is not None]
    worst = f"{decibels_text(min(found))} at the worst output" if found else "no output compared"
    names = [clean(Path(str(data[key])).name, 60) for key in ("float_model", "quantized")]
    count = many(len(data["culprits"]), "culprit")
    return f"{' and '.join(names)} on {many(int(data['samples']), 'sample')}: {worst}, {count}"


def _sqnr(errors: Data | None) -> float | None:
    return number(errors["sqnr"]) if errors is not None else None


def _decibels(errors: Data | None) -> str:
    return decibels_text(_sqnr(errors), "")


def _interval(ends: Sequence[float] | None) -> str:
    return f"{decibels_text(ends[0], '')} … {decibels_text(ends[1], '')}" if ends else NONE


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f} %" if 0 < value < 0.1 else f"{100 * value:.0f} %"


def _worst(tensors: Sequence[Data], top: int) -> list[Data]:
    """Return the tensors with the largest local error; those without one come last."""

    def key(tensor: Data) -> float:
        value = _sqnr(tensor["local"])
        return math.inf if value is None else value

    return sorted(tensors, key=key)[:top]


def _tensor_row(tensor: Data) -> list[str]:
    local, model = tensor["local"], tensor["accumulated"]
    shown = local or model
    return [
        _decibels(local),
        _decibels(model),
        f"{shown['cosine']:.4f}" if shown else NONE,
        f"{shown['max_error']:.3g}" if shown else NONE,
        _share(tensor["clipped"]),
        _share(tensor["rounding"]),
        _share(tensor["used"]),
        tensor["op_type"],
        tensor["name"],
    ]


def _for_terminal(row: Sequence[str]) -> list[str]:
    return [row[index] for index in _IN_TERMINAL]


def _output_rows(data: Data) -> list[list[str]]:
    return [
        [
            output["name"],
            _decibels(output["errors"]),
            _interval(output.get("interval")),
            f"{output['errors']['cosine']:.5f}" if output["errors"] else NONE,
            f"{output['errors']['max_error']:.3g}" if output["errors"] else NONE,
            _decibels(output["execution"]),
        ]
        for output in data["outputs"]
    ]


def _matched(data: Data) -> str:
    unmatched = data["unmatched"]
    lost = f"; {many(len(unmatched), 'operator')} not: {some(unmatched)}" if unmatched else ""
    where = f"{many(int(data['samples']), 'sample')}, {data['looked']} of them tensor by tensor"
    return f"{many(int(data['matched']), 'operator')} matched{lost}; {where}"


def _culprit_lines(culprits: Sequence[Data]) -> list[str]:
    lines: list[str] = []
    for i, one in enumerate(culprits, 1):
        node = f"{one['op_type']} {clean(one['node'])}"
        lines.append(f"{i}. {clean(one['tensor'])} ({one['kind']}): {decibels_text(one['sqnr'])} at {node}")
        lines.append(f"   why: {clean(one['text'], 600)}")
        lines.append(f"   try: {clean(one['change']['text'], 600)}")
    return lines


def comparison_table(data: Data, top: int = 10) -> str:
    """Return outputs, culprits, and the tensors with the largest local error."""
    culprits = data["culprits"][:top]
    parts = [
        f"{clean(data['float_model'])} and {clean(data['quantized'])}: {_matched(data)}",
        columns(_output_rows(data), _OUTPUT_HEAD),
        "Culprits, the worst first:\n" + "\n".join(_culprit_lines(culprits))
        if culprits
        else f"No culprit: {_NO_CULPRIT}.",
        "Largest local errors (an operator alone, fed with float inputs):\n"
        + columns(
            [_for_terminal(_tensor_row(tensor)) for tensor in _worst(data["tensors"], top)],
            _for_terminal(_TENSOR_HEAD),
        ),
        *notes_lines(data["notes"]),
    ]
    return "\n\n".join(parts)


def comparison_markdown(data: Data, top: int = 20) -> str:
    """Return the same as a page of Markdown."""
    culprits = [
        [
            one["tensor"],
            one["kind"],
            f"{one['op_type']} {one['node']}",
            decibels_text(one["sqnr"], ""),
            one["text"],
            one["change"]["text"],
        ]
        for one in data["culprits"][:top]
    ]
    parts = [
        f"# {clean(data['float_model'])} and {clean(data['quantized'])}",
        f"{_matched(data)}.",
        markdown_table(_output_rows(data), _OUTPUT_HEAD),
        "## Culprits",
        markdown_table(culprits, _CULPRIT_HEAD) if culprits else f"None: {_NO_CULPRIT}.",
        "## Largest local errors",
        markdown_table([_tensor_row(tensor) for tensor in _worst(data["tensors"], top)], _TENSOR_HEAD),
        *(f"- {clean(note, 600)}" for note in data["notes"]),
    ]
    return "\n\n".join(parts) + "\n"


# ---- Findings of ``doctor`` and ``lint`` as lists for a terminal

SEVERITIES = ("error", "warning", "note")
_LISTED = 8  # findings of one topic; the rest is only counted


def counted(severities: Sequence[str], nothing: str) -> str:
    """Return how many findings there are of each severity: ``1 error, 2 notes``."""
    counts = Counter(severities)
    return ", ".join(many(counts[s], s) for s in SEVERITIES if counts[s]) or nothing


def diagnosis_table(model: str, findings: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each finding and one for what to do; long topics are shortened."""
    severities = [finding["severity"] for finding in findings]
    lines = [f"{clean(model)}: {counted(severities, 'nothing found that would hinder quantization')}"]
    seen: Counter[tuple[str, str]] = Counter()
    for one in findings:
        key = (one["severity"], one["topic"])
        seen[key] += 1
        if seen[key] <= _LISTED:
            lines.append(
                f"{one['severity']}: {one['topic']}: {clean(one['place'])}: {clean(one['text'], 600)}"
            )
            lines.append(f"    to do: {clean(one['advice'], 400)}")
    rest = {topic: count - _LISTED for (_, topic), count in seen.items() if count > _LISTED}
    lines += [f"… and {count} more about {topic} (--json lists all)" for topic, count in rest.items()]
    return "\n".join(lines)
