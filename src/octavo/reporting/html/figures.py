"""The verdict on a quantized model, and the figures that it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.reporting.bench import time_text
from octavo.reporting.evaluation import difference_text, figure_text
from octavo.reporting.html.sources import Side
from octavo.reporting.text import many, size

GOOD, FAIR, POOR, UNKNOWN = "good", "fair", "poor", "unknown"
_ORDER = (UNKNOWN, GOOD, FAIR, POOR)
_LOSS = (0.01, 0.03)  # of a figure: good up to the first, poor beyond the second
_DECIBELS = (20.0, 10.0)  # of the worst output

Figure = dict[str, Any]


def number(value: Any) -> float | None:
    """A number, also one that JSON had to spell as a word."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None


def loss(evaluation: Mapping[str, Any]) -> tuple[dict[str, Any], float] | None:
    """The first difference of an evaluation and how much is lost: points of a share, else relative."""
    scores = {score["name"]: score for score in evaluation.get("scores") or ()}
    before = {score["name"]: score for score in evaluation.get("against_scores") or ()}
    for difference in evaluation.get("differences") or ():
        score, value = scores.get(difference["name"]), number(difference["value"])
        reference = number((before.get(difference["name"]) or {}).get("value"))
        if score is None or value is None or not math.isfinite(value):
            continue
        worse = -value if score["higher_is_better"] else value
        if not score["percent"]:
            worse /= max(abs(reference or 0.0), 1e-12)
        return {**score, "difference": difference}, worse
    return None


def _level(value: float, bounds: tuple[float, float], *, rising: bool) -> str:
    first, second = bounds if rising else (-bounds[0], -bounds[1])
    value = value if rising else -value
    return GOOD if value <= first else FAIR if value <= second else POOR


def accuracy(side: Side) -> Figure | None:
    """The figure of the task, with what it lost."""
    evaluation = side.parts.get("evaluation")
    if evaluation is None or not evaluation.get("scores"):
        return None
    found = loss(evaluation)
    if found is None:
        score = evaluation["scores"][0]
        value = figure_text(float(score["value"]), score["percent"])
        return {"label": score["name"], "value": value, "detail": evaluation["task"], "level": UNKNOWN}
    score, lost = found
    difference = score["difference"]
    level = _level(lost, _LOSS, rising=True)
    within = not difference["significant"]
    if within and level == POOR:
        level = FAIR
    detail = difference_text(difference, score["percent"]) + (", within noise" if within else "")
    value = figure_text(float(score["value"]), score["percent"])
    return {"label": score["name"], "value": value, "detail": detail, "level": level}


def output_error(side: Side) -> Figure | None:
    """The SQNR of the worst output."""
    comparison = side.parts.get("comparison")
    found = [
        (value, output["name"])
        for output in (comparison or {}).get("outputs") or ()
        if (value := number((output.get("errors") or {}).get("sqnr"))) is not None
    ]
    if not found:
        return None
    worst, name = min(found)
    text = "exact" if worst == math.inf else f"{worst:.1f} dB"
    level = _level(worst, _DECIBELS, rising=False)
    return {"label": "worst output, SQNR", "value": text, "detail": f"output {name}", "level": level}


def file_size(side: Side) -> Figure | None:
    """Bytes before and after."""
    bench = side.parts.get("bench")
    made = side.parts.get("quantization") or side.parts.get("model")
    if bench is not None and len(bench["models"]) == 2:
        before, after = (int(model["file_bytes"]) for model in bench["models"])
    elif made is not None:
        before, after = int(made.get("float_bytes") or 0), int(made.get("bytes") or 0)
    else:
        return None
    ratio = f"{after / before:.2f} ×" if before else size(after)
    detail = f"{size(before)} → {size(after)}" if before else "weights"
    return {"label": "size", "value": ratio, "detail": detail, "level": GOOD if after < before else UNKNOWN}


def latency(side: Side) -> Figure | None:
    """Times and their ratio."""
    bench = side.parts.get("bench")
    if bench is None or not bench.get("models"):
        return None
    times = [time_text(model["latency"]["median"]) for model in bench["models"]]
    ratio = bench.get("ratio")
    if ratio is None:
        return {"label": "latency", "value": times[0], "detail": "", "level": UNKNOWN}
    level = GOOD if ratio["low"] > 1 else POOR if ratio["high"] < 1 else FAIR
    detail = f"{times[0]} → {times[1]}; {ratio['low']:.2f} … {ratio['high']:.2f} ×"
    return {"label": "speed", "value": f"{ratio['value']:.2f} ×", "detail": detail, "level": level}


def coverage(side: Side) -> Figure | None:
    """How many operators are quantized."""
    made = side.parts.get("quantization")
    if made is None:
        return None
    count, kept = sum(made["quantized"].values()), len(made.get("skipped") or ())
    absorbed = len((made.get("plan") or {}).get("absorbed") or ())
    more = f", {absorbed} absorbed" if absorbed else ""
    stored = len((made.get("plan") or {}).get("stored") or ())
    more += f", {many(stored, 'weight')} stored as int8" if stored else ""
    detail = f"{kept} kept float{more}"
    return {
        "label": "operators quantized",
        "value": f"{count} of {count + kept}",
        "detail": detail,
        "level": UNKNOWN,
    }


def figures(side: Side) -> list[Figure]:
    """All that are known."""
    made = (accuracy(side), output_error(side), file_size(side), latency(side), coverage(side))
    return [figure for figure in made if figure is not None]


def verdict(side: Side) -> dict[str, str]:
    """A level and a sentence."""
    right, near, speed = accuracy(side), output_error(side), latency(side)
    judged = right if right is not None and right["level"] != UNKNOWN else near
    level = judged["level"] if judged is not None else UNKNOWN
    if judged is right and right is not None:
        said = {GOOD: "Still right", FAIR: "A little worse", POOR: "Worse than float"}[level]
        said = "Perhaps worse" if level != GOOD and "within noise" in right["detail"] else said
        text = f"{said}: {right['label']} {right['value']} ({right['detail']})."
    elif near is not None:
        said = {GOOD: "Close to float", FAIR: "Some distance from float", POOR: "Far from float"}[level]
        text = f"{said}: {near['value']} at the worst output."
    else:
        text = "Not yet held against float: 'octavo compare' and 'octavo evaluate' tell how right it is."
    more = []
    if (bytes_ := file_size(side)) is not None and "→" in bytes_["detail"]:
        more.append(f"{bytes_['value']} the size")
    if speed is not None and speed["label"] == "speed":
        more.append(f"{speed['value']} as fast")
        if speed["level"] == POOR:
            level = max(level, FAIR, key=_ORDER.index)
    return {"level": level, "text": text + (f" {', '.join(more)}." if more else "")}
