"""What `accuracy.py` holds its figures against: limits of each model, the best of other tools, robustness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from _measure import Figures, Verdict
from _peers import PEERS
from _samples import standard_error
from _zoo import MODELS

Rows = dict[str, Figures]

MOST_SECONDS = 300  # for all steps
SMALL = 100e6  # bytes of the models of which that is asked
PER_TENSOR = 0.015  # of mobilenet_v2 with one scale for each weight tensor
POINT = 0.01
OURS = ("default", "auto")  # what octavo.quantize does by itself, and the automatic choice
SPREAD = 0.5  # points between calibration sets


@dataclass(frozen=True)
class Limit:
    """The most that the automatic choice may lose against float, and how fast it has to be."""

    loss: float
    relative: bool = False
    speed: float | None = None


LIMITS = {
    "mobilenet_v2": Limit(0.005),
    "efficientnet_lite0": Limit(0.005),
    "yolov8n": Limit(0.015, relative=True, speed=2.0),
    "all_minilm_l6_v2": Limit(0.003),
    "ppocrv4_rec": Limit(0.002, speed=1.8),
    "minilm_sst2": Limit(0.005),
    "smollm2_135m": Limit(0.03, relative=True),
}


def figure(model: str, row: Figures | None) -> float | None:
    """The metric of a row."""
    value: float | None = (row or {}).get("metrics", {}).get(MODELS[model].metric)
    return value


def gain(model: str, one: Figures | None, other: Figures | None) -> float | None:
    """By how much one row is better than another, in the metric's unit."""
    mine, theirs = figure(model, one), figure(model, other)
    if mine is None or theirs is None:
        return None
    return mine - theirs if MODELS[model].higher_is_better else theirs - mine


def claims(table: dict[str, Rows], per: str) -> Iterator[Verdict]:
    """All that can be said of a table."""
    for model, rows in table.items():
        if per == "channel":
            yield from within_limits(model, "auto", rows)
            for ours in OURS:
                yield from beside_peers(model, rows, ours)
        yield from of_steps(model, rows)
        if per == "tensor" and model == "mobilenet_v2":
            yield from one_scale(rows)


def within_limits(model: str, variant: str, rows: Rows) -> Iterator[Verdict]:
    """The automatic choice, or another row, against float."""
    limit, row = LIMITS.get(model), rows.get(variant)
    won = gain(model, row, rows.get("float"))
    base = figure(model, rows.get("float"))
    if limit is None or row is None or won is None or base is None:
        return
    lost = -won / (base if limit.relative else 1.0)
    unit = " of it" if limit.relative else ""
    error = standard_error(row.get("jackknife"), rows["float"].get("jackknife"))
    noise = f" ± {error / (base if limit.relative else 1.0):.4f}" if error is not None else ""
    claim = (
        f"{model}, {variant}: {MODELS[model].metric} at most {limit.loss:g} {unit}".rstrip()
        + " worse than float"
    )
    yield Verdict(claim, lost <= limit.loss, f"{lost:+.4f}{noise} worse")
    if limit.speed is not None:
        speed = row.get("speed")
        holds = speed >= limit.speed if speed is not None else None
        yield Verdict(f"{model}, {variant}: {limit.speed:g} × as fast as float", holds, f"{speed or 0:.2f} ×")


def beside_peers(model: str, rows: Rows, ours: str) -> Iterator[Verdict]:
    """One way of Octavo against the most accurate of the other tools."""
    peers = [name for name in PEERS if figure(model, rows.get(name)) is not None]
    if figure(model, rows.get(ours)) is None or not peers:
        return
    sign = 1 if MODELS[model].higher_is_better else -1
    best = max(peers, key=lambda name: sign * (figure(model, rows[name]) or 0.0))
    mine, theirs = rows[ours], rows[best]
    won = gain(model, mine, theirs) or 0.0
    error = standard_error(mine.get("jackknife"), theirs.get("jackknife"))
    evidence = f"{MODELS[model].metric} {figure(model, mine):.4f}, {best} {figure(model, theirs):.4f}"
    evidence += f" ± {error:.4f}" if error is not None else ""
    yield Verdict(
        f"{model}, {ours}: as accurate as the best peer, within noise", won >= -(error or 0.0), evidence
    )
    near = {name: rows[name]["sqnr_db"] for name in peers if rows[name].get("sqnr_db") is not None}
    if mine.get("sqnr_db") is not None and near:
        text = f"{mine['sqnr_db']:.1f} dB, " + ", ".join(f"{name} {db:.1f}" for name, db in near.items())
        holds = mine["sqnr_db"] >= max(near.values())
        yield Verdict(f"{model}, {ours}: closer to float than every peer", holds, text)
    if mine.get("speed") and theirs.get("speed"):
        holds = mine["speed"] >= theirs["speed"]
        text = f"{mine['speed']:.2f} × float, {best} {theirs['speed']:.2f} ×"
        yield Verdict(f"{model}, {ours}: runs faster than it", holds, text)
    text = f"{mine['seconds']:.0f} s, {best} {theirs['seconds']:.0f} s"
    yield Verdict(f"{model}, {ours}: quantized faster than by it", mine["seconds"] <= theirs["seconds"], text)


def of_steps(model: str, rows: Rows) -> Iterator[Verdict]:
    """All steps together: time, size, and whether they help."""
    plain, free, every = rows.get("plain", {}), rows.get("free", {}), rows.get("all", {})
    if "bytes" in plain and "bytes" in free:
        kept = free["bytes"] <= plain["bytes"] * 1.001 and free["operators"] <= plain["operators"]
        bytes_, operators = (free[key] - plain[key] for key in ("bytes", "operators"))
        change = f"{bytes_:+d} bytes, {operators:+d} operators"
        yield Verdict(f"{model}: free steps make it neither larger nor longer", kept, change)
    if "seconds" in every and rows.get("float", {}).get("bytes", 0) < SMALL:
        taken = every["seconds"]
        yield Verdict(f"{model}: all steps in 5 minutes", taken <= MOST_SECONDS, f"{taken:.0f} s")
    for name in ("free", "all"):
        won = gain(model, rows.get(name), plain)
        if won is not None:
            error = standard_error(rows[name].get("jackknife"), plain.get("jackknife"))
            text = f"{MODELS[model].metric} {figure(model, plain):.4f} → {figure(model, rows[name]):.4f}"
            text += f" ± {error:.4f}" if error is not None else ""
            yield Verdict(
                f"{model}: {name} steps no worse than none, within noise", won >= -(error or 0.0), text
            )


def one_scale(rows: Rows) -> Iterator[Verdict]:
    """mobilenet_v2 with one scale for each weight tensor."""
    for name in ("free", "all", "auto"):
        won = gain("mobilenet_v2", rows.get(name), rows.get("float"))
        if won is not None:
            claim = f"mobilenet_v2, one scale for each weight, {name}: at most 1.5 points lost"
            yield Verdict(claim, -won <= PER_TENSOR, f"{-100 * won:+.1f} points lost")
    lost = gain("mobilenet_v2", rows.get("plain"), rows.get("float"))
    if lost is not None:
        yield Verdict(
            "mobilenet_v2, one scale for each weight, plain", None, f"{-100 * lost:+.1f} points lost"
        )


def robustness_claims(table: dict[str, Rows]) -> Iterator[Verdict]:
    """The results of disjoint calibration sets against float and each other."""
    for model, rows in table.items():
        for name in rows:
            if name.startswith("auto, set"):
                yield from within_limits(model, name, rows)
        variants = dict.fromkeys(name.partition(", set")[0] for name in rows if ", set" in name)
        for variant in variants if model in LIMITS else ():
            sets = [row for name, row in rows.items() if name.startswith(f"{variant}, set")]
            found = sorted(
                ((value, row) for row in sets if (value := figure(model, row)) is not None),
                key=lambda pair: pair[0],
            )
            if len(found) < 2:
                continue
            points = spread(model, [value for value, _ in found])
            error = standard_error(found[0][1].get("jackknife"), found[-1][1].get("jackknife"))
            noise = (
                f" (standard error {spread(model, [found[0][0], found[0][0] + error]):.2f})" if error else ""
            )
            text = ", ".join(f"{value:.4f}" for value, _ in found)
            claim = f"{model}, {variant}: calibration sets within {SPREAD} points"
            yield Verdict(claim, points <= SPREAD, f"{points:.2f} points apart{noise}: {text}")


def spread(model: str, values: list[float]) -> float:
    """The largest difference of several results, in points; of perplexities, in percent."""
    wide = max(values) - min(values)
    return wide / POINT / (min(values) if MODELS[model].relative else 1.0)
