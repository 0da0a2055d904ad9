"""The verdict on a quantized model, and the tiles that it rests on: all that was measured, with intervals.

==============  ====================================================================================
accuracy        the task of an evaluation, or the task that trials were checked on
fidelity        SQNR and same class beside float: a comparison, an evaluation of agreement, or trials
speed           a bench, or the timing of trials
requirements    what was required of the result, and whether it holds
==============  ====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.core.intervals import wilson_half_width
from octavo.reporting.figures import (
    decibels_text,
    difference_text,
    interval_text,
    metric_text,
    metric_title,
    number,
    share_text,
    speed_text,
    time_text,
)
from octavo.reporting.html.report_parts import Side
from octavo.reporting.text import many, size
from octavo.reporting.trial_tables import asked, best_trial, requirement_texts, sample_count

GOOD, FAIR, POOR, UNKNOWN = "good", "fair", "poor", "unknown"
_WORSE = (UNKNOWN, GOOD, FAIR, POOR)
_LOSS = (0.01, 0.03)  # points of a share, or relative: good up to the first, poor beyond the second
_DECIBELS = (20.0, 10.0)  # of the worst output: good from the first up, poor below the second


@dataclass(frozen=True)
class Tile:
    """A figure on the page, and the words that the verdict has for it."""

    label: str
    value: str
    detail: str = ""
    level: str = UNKNOWN
    said: str = ""


def _level(value: float, bounds: tuple[float, float]) -> str:
    """Return the level of a value for which less is better."""
    return GOOD if value <= bounds[0] else FAIR if value <= bounds[1] else POOR


def _tuning(side: Side) -> Mapping[str, Any]:
    """Return what the trials measured: of the result, or as the manifest beside a model keeps it."""
    manifest = (side.part("model").get("details") or {}).get("manifest") or {}
    found: Mapping[str, Any] = side.part("quantization").get("tuning") or manifest.get("tuning") or {}
    return found


# ---- accuracy


def accuracy(side: Side) -> Tile | None:
    """Return the metric of a task, with its interval and what was lost."""
    evaluation = side.part("evaluation")
    if evaluation.get("scores") and evaluation.get("task") != "agreement":
        return _evaluated(evaluation)
    return _task_of_trials(_tuning(side))


def _evaluated(evaluation: Mapping[str, Any]) -> Tile:
    samples = many(int(evaluation["samples"]), "sample")
    found = _first_difference(evaluation)
    if found is None:
        score = evaluation["scores"][0]
        name, value, interval = _named(score)
        said = f"{name} {value} {interval} on {samples}, not compared with float."
        return Tile(name, value, f"{interval}, {evaluation['task']}, {samples}", UNKNOWN, said)
    score, difference, lost = found
    name, value, _ = _named(score)
    noise = not difference["significant"]
    level = _level(lost, _LOSS)
    level = FAIR if noise and level == POOR else level
    changed = difference_text(difference, score["percent"]) + (", within noise" if noise else "")
    words = {GOOD: "Accuracy kept", FAIR: "Slightly less accurate", POOR: "Less accurate than float"}[level]
    words = "Perhaps less accurate" if noise and level != GOOD else words
    said = f"{words}: {name} {value} ({changed}; {samples})."
    return Tile(name, value, f"{changed}, {samples}", level, said)


def _named(score: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the title of a score, its value, and its interval in brackets."""
    value = metric_text(score["name"], score["value"], bool(score.get("percent")))
    interval = f"({interval_text(score)})" if score.get("low") is not None else ""
    return metric_title(score["name"]), value, interval


def _first_difference(evaluation: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], float] | None:
    """Return the first score with its difference, and the loss: points of a share, else relative."""
    scores = {score["name"]: score for score in evaluation.get("scores") or ()}
    before = {score["name"]: score for score in evaluation.get("against_scores") or ()}
    for difference in evaluation.get("differences") or ():
        score, value = scores.get(difference["name"]), number(difference["value"])
        if score is None or value is None or not math.isfinite(value):
            continue
        lost = -value if score["higher_is_better"] else value
        if not score["percent"]:
            reference = number((before.get(difference["name"]) or {}).get("value"))
            lost /= max(abs(reference or 0.0), 1e-12)
        return score, difference, lost
    return None


def _task_of_trials(tuning: Mapping[str, Any]) -> Tile | None:
    score = (best_trial(tuning) or {}).get("score")
    if not score:
        return None
    percent = bool(score.get("percent"))
    name, value, interval = _named(score)
    reference = metric_text(score["name"], score["float"], percent)
    lost = float(score["lost"]) / (1.0 if percent else max(abs(float(score["float"])), 1e-12))
    level = _level(lost, _LOSS)
    samples = many(int(score["samples"]), "sample") if score.get("samples") else ""
    detail = ", ".join(part for part in (interval[1:-1], f"float {reference}", samples) if part)
    words = {GOOD: "Accuracy kept", FAIR: "Slightly less accurate", POOR: "Less accurate than float"}[level]
    return Tile(name, value, detail, level, f"{words}: {name} {value} ({detail}).")


# ---- fidelity


def fidelity(side: Side) -> list[Tile]:
    """Return the SQNR of the worst output, and how often the best class is the same."""
    found = _compared_outputs(side.part("comparison"))
    agreed = _agreement(side.part("evaluation"))
    tried = _fidelity_of_trials(_tuning(side))
    sqnr = found or next((t for t in (*agreed, *tried) if t.label.startswith("SQNR")), None)
    same = next((t for t in (*agreed, *tried) if t.label == "same class"), None)
    return [tile for tile in (sqnr, same) if tile is not None]


def _sqnr_tile(value: float, detail: str, where: str) -> Tile:
    level = _level(-value, (-_DECIBELS[0], -_DECIBELS[1]))
    words = {GOOD: "Close to float", FAIR: "Some distance from float", POOR: "Far from float"}[level]
    text = decibels_text(value)
    return Tile("SQNR, worst output", text, detail, level, f"{words}: {text} {where}.")


def _compared_outputs(comparison: Mapping[str, Any]) -> Tile | None:
    found = [
        (value, output["name"], output.get("interval"))
        for output in comparison.get("outputs") or ()
        if (value := number((output.get("errors") or {}).get("sqnr"))) is not None
    ]
    if not found:
        return None
    worst, name, ends = min(found, key=lambda one: one[0])
    count = comparison.get("samples")
    samples = f", {many(int(count), 'sample')}" if count else ""
    detail = f"{_decibel_interval(ends)}output {name}{samples}"
    return _sqnr_tile(worst, detail, f"at the worst output{samples}")


def _decibel_interval(ends: Any) -> str:
    return f"{decibels_text(ends[0], '')} … {decibels_text(ends[1], '')}, " if ends else ""


def _agreement(evaluation: Mapping[str, Any]) -> list[Tile]:
    if evaluation.get("task") != "agreement":
        return []
    samples = many(int(evaluation["samples"]), "sample")
    found = []
    for score in evaluation.get("scores") or ():
        _, value, interval = _named(score)
        detail = f"{interval}, {samples}"
        if score["name"] == "sqnr_db" and number(score["value"]) is not None:
            found.append(_sqnr_tile(float(score["value"]), detail, f"over all outputs, {samples}"))
        elif score["name"] == "agreement":
            found.append(
                Tile("same class", value, detail, UNKNOWN, f"Same class as float: {value} {interval}.")
            )
    return found


def _fidelity_of_trials(tuning: Mapping[str, Any]) -> list[Tile]:
    best = best_trial(tuning) or {}
    held = int(tuning.get("held_back") or 0)
    samples = many(held, "held-back sample") if held else "samples that calibration used"
    found = []
    value, same = number(best.get("sqnr_db")), number(best.get("agreement"))
    if value is not None:
        interval = _decibel_interval(best.get("sqnr_interval"))
        parts = {name: number(one) for name, one in (best.get("outputs") or {}).items()}
        known = {name: one for name, one in parts.items() if one is not None}
        where = min(known, key=known.__getitem__) if len(known) > 1 else "the worst output"
        detail = f"{interval}{f'{where}, ' if len(known) > 1 else ''}{samples}"
        found.append(_sqnr_tile(value, detail, f"at {where}, {samples}"))
    if same is not None:
        width = f"± {100 * wilson_half_width(same, sample_count(best, held)):.1f} points"
        said = f"Same class as float: {share_text(same)} {width}."
        found.append(Tile("same class", share_text(same), f"{width}, {samples}", UNKNOWN, said))
    return found


# ---- speed, size, requirements


def speed(side: Side) -> Tile | None:
    """Return how many times as fast as float, with its interval, or the latency of one model."""
    bench = side.part("bench")
    times = [time_text(model["latency"]["median"]) for model in bench.get("models") or ()]
    ratio = bench.get("ratio") or (best_trial(_tuning(side)) or {}).get("speed")
    if not ratio:
        return Tile("latency", times[0]) if times else None
    level = GOOD if ratio["low"] > 1 else POOR if ratio["high"] < 1 else FAIR
    interval = f"{ratio['low']:.2f} … {ratio['high']:.2f} × float"
    detail = f"{times[0]} → {times[1]}; {interval}" if len(times) == 2 else interval
    value = f"{ratio['value']:.2f} ×"
    return Tile("speed", value, detail, level, speed_text(ratio, " as fast"))


def file_size(side: Side) -> Tile | None:
    """Return the bytes before and after."""
    models, made = side.part("bench").get("models") or (), side.made
    if len(models) == 2:
        before, after = (int(model["file_bytes"]) for model in models)
    elif made:
        before, after = int(made.get("float_bytes") or 0), int(made.get("bytes") or 0)
    else:
        return None
    if not before:
        return Tile("size", size(after), "weights")
    value, level = f"{after / before:.2f} ×", GOOD if after < before else UNKNOWN
    return Tile("size", value, f"{size(before)} → {size(after)}", level, f"{value} the size")


def required(side: Side) -> Tile | None:
    """Return what was required of the result, and whether it holds."""
    tuning = _tuning(side)
    listed = requirement_texts(tuning.get("requirements") or {})
    if not listed:
        return _gates(side)
    met = bool(tuning.get("met"))
    if met and not asked(tuning.get("requirements") or {}):
        return None
    words = f"{'Meets' if met else 'Misses'} what was required: {', '.join(listed)}."
    return Tile("requirements", "met" if met else "not met", ", ".join(listed), GOOD if met else POOR, words)


def _gates(side: Side) -> Tile | None:
    """Return the requirements that a verb has checked on this model."""
    kinds = ("quantization", "evaluation", "comparison", "bench")
    found = [
        gate
        for kind in kinds
        for gate in side.part(kind).get("gates") or ()
        if not gate.get("model") or Path(gate["model"]).name == side.name
    ]
    if not found:
        return None
    missed = [gate for gate in found if not gate["passed"]]
    is_open = bool(missed) and not any(gate.get("decided", True) for gate in missed)
    listed = [f"{gate['name'].replace('_', '-')} {gate['limit']}" for gate in found]
    said = "; ".join(
        f"{gate['name'].replace('_', '-')} {gate['limit']}, measured {gate['measured']}" for gate in missed
    )
    words = f"Misses what was required: {said}."
    if is_open:
        words = f"The measurement does not tell whether it meets what was required: {said}."
    if not missed:
        words = f"Meets what was required: {', '.join(listed)}."
    value, level = ("not met", POOR) if missed else ("met", GOOD)
    if is_open:
        value, level = "undecided", UNKNOWN
    return Tile("requirements", value, ", ".join(listed), level, words)


def coverage(side: Side) -> Tile | None:
    """Return how many operators are quantized."""
    made = side.part("quantization")
    if not made:
        return None
    count, kept = sum(made["quantized"].values()), len(made.get("skipped") or ())
    plan = made.get("plan") or {}
    details = [f"{kept} kept in float"]
    if plan.get("fused"):
        details.append(f"{len(plan['fused'])} fused")
    if plan.get("compressed"):
        details.append(f"{many(len(plan['compressed']), 'weight')} compressed")
    return Tile("operators quantized", f"{count} of {count + kept}", ", ".join(details))


def tiles(side: Side) -> list[dict[str, str]]:
    """Return all tiles that are known, as plain data."""
    made = (accuracy(side), *fidelity(side), speed(side), file_size(side), required(side), coverage(side))
    return [asdict(tile) for tile in made if tile is not None]


def verdict(side: Side) -> dict[str, str]:
    """Return a level, a badge and the sentences of the verdict."""
    right, near, fast, met = accuracy(side), fidelity(side), speed(side), required(side)
    judged = right if right is not None and (right.level != UNKNOWN or not near) else None
    level = judged.level if judged is not None else near[0].level if near else UNKNOWN
    sentences = [
        tile.said for tile in ((right,) if judged is not None else (right, *near)) if tile is not None
    ]
    if not sentences:
        sentences = ["Accuracy not measured yet: 'octavo evaluate' and 'octavo compare' measure it."]
    badge = level if level != UNKNOWN else "measured" if right or near else "accuracy not measured"
    costs = [tile.said for tile in (file_size(side), fast) if tile is not None and tile.said]
    sentences += [f"{', '.join(costs)}."] if costs else []
    if fast is not None and fast.level == POOR:
        level = max(level, FAIR, key=_WORSE.index)
    if met is not None:
        sentences.append(met.said)
        level = level if met.level != POOR else POOR
        badge = badge if met.level != POOR or badge in _WORSE else "requirement not met"
    badge = level if badge in _WORSE else badge
    return {"level": level, "badge": badge, "text": " ".join(sentences)}
