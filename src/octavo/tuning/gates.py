"""Gates: limits that a quantized model has to keep, measured against its float model.

============  ==========================================================================================
``max_drop``  what the first metric of a task may lose, measured on the same samples
``min_sqnr``  fidelity of the worst output in dB, ``10 · log10(Σ x² / Σ (x − y)²)``
``min_speed`` speed as a multiple of the float model's, timed in turns
``max_size``  bytes of weights as a multiple of the float model's
============  ==========================================================================================

The first two and the last are the same in every run on the same data. A speed is not: it has an interval, and
a limit within the interval is neither kept nor missed. The gate is then undecided.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from octavo.calibration.engines import engine_of
from octavo.data.feeds import Feeds
from octavo.errors import RecipeError
from octavo.evaluation.model_paths import model_path, model_title
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.model.runtime.session import Session
from octavo.reporting.figures import decibels_text, speed_text
from octavo.tuning.fidelity import judged, outputs_of, tallies
from octavo.tuning.requirements import Drop, Requirements, TaskCheck, limits_of
from octavo.tuning.task_check import TaskChecker
from octavo.tuning.trial import Score, Trial

_SAMPLES = 64  # that fidelity is measured on, where no number is given
_SAMPLES_LOOKED_AT = 8  # to find out what the outputs are made of
_SECONDS = (3.0, 12.0)  # of timing, and of a second one where the first does not decide


@dataclass(frozen=True)
class Gate:
    """A limit, what was measured, and whether the limit is kept."""

    name: str  # one of GATES
    limit: str
    measured: str
    value: float | None
    passed: bool  # False as well where the measurement does not decide
    model: str = ""  # that was measured
    decided: bool = True  # whether the measurement tells on which side of the limit the value lies

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __str__(self) -> str:
        state = "passed" if self.passed else "FAILED" if self.decided else "UNDECIDED"
        return f"{state}  {self.name.replace('_', '-')} {self.limit}: measured {self.measured}"


def drop_gate(most: Drop, score: Score) -> Gate:
    """Return the gate on the loss of a task's metric."""
    share = score.lost / abs(score.float_value) if score.float_value else math.inf * score.lost
    amount = (
        f"{100 * abs(share):.2g} %" if most.relative and math.isfinite(share) else f"{abs(score.lost):.4g}"
    )
    word = "gained" if score.lost < 0 else "lost"
    count = f"; {score.samples} samples" if score.samples else ""
    text = f"{amount} {word} ({score}, float {score.float_text}{count})"
    return Gate("max_drop", f"{most} at most", text, score.lost, most.allows(score))


def sqnr_gate(least: float, decibels: float) -> Gate:
    """Return the gate on fidelity."""
    return Gate("min_sqnr", f"{least:g} dB at least", decibels_text(decibels), decibels, decibels >= least)


def speed_gate(least: float, speed: Ratio) -> Gate:
    """Return the gate on speed; one within the interval of the measurement is undecided."""
    found, text = speed.reaches(least), speed_text(asdict(speed))
    limit = f"{least:g} × float at least"
    return Gate("min_speed", limit, text, speed.value, found is True, decided=found is not None)


def size_gate(most: float, size: float) -> Gate:
    """Return the gate on the bytes of weights."""
    return Gate("max_size", f"{most:g} × float at most", f"{size:.2f} ×", size, size <= most)


def gates_of_trial(trial: Trial, requirements: Requirements, names: Iterable[str]) -> tuple[Gate, ...]:
    """Return the requirements on a search that a user gave, and what the chosen trial shows of each."""
    found: list[Gate] = []
    for name in names:
        if name == "max_drop" and requirements.max_drop is not None and trial.score is not None:
            found.append(drop_gate(requirements.max_drop, trial.score))
        elif name == "min_sqnr" and requirements.min_sqnr is not None and trial.sqnr_db is not None:
            found.append(sqnr_gate(requirements.min_sqnr, trial.sqnr_db))
        elif name == "min_speed" and requirements.min_speed is not None and trial.speed is not None:
            found.append(speed_gate(requirements.min_speed, trial.speed))
        elif name == "max_size" and trial.size is not None:
            found.append(size_gate(requirements.max_size, trial.size))
    return tuple(found)


def measured_speed(
    float_path: Path, path: Path, data: Any, threads: int | None, least: float
) -> Ratio | None:
    """Return how many times as fast as the float model another one is.

    Where a first measurement leaves open whether it is fast enough, a longer one takes its place.
    """
    from octavo.evaluation.timing.bench import bench  # slow to import, and seldom needed

    found = None
    for seconds in _SECONDS:
        found = bench(
            float_path, path, data, threads=threads, seconds=seconds, profile=False, memory=False
        ).ratio
        if found is None or found.reaches(least) is not None:
            break
    return found


def check_gates(
    model: Any,
    quantized: Any,
    limits: Mapping[str, Any],
    *,
    data: Any = None,
    task: TaskCheck | None = None,
    samples: int | None = None,
    threads: int | None = None,
    score: Score | None = None,
    speed: Ratio | None = None,
) -> tuple[Gate, ...]:
    """Measure what the limits are about, and return a gate for each.

    A ``score`` or ``speed`` that was measured already is taken as it is.
    """
    limits = limits_of(limits)
    with contextlib.ExitStack() as stack:
        float_path, path = (model_path(one, stack) for one in (model, quantized))
        found: list[Gate] = []
        if (drop := limits.get("max_drop")) is not None:
            if score is None and task is None:
                raise RecipeError(
                    "max_drop limits the loss of a task's metric; say which task, with its data."
                )
            if score is None and task is not None:
                engine = engine_of("serial", None, None, threads)
                score = TaskChecker(task, float_path, engine).score(path)
            if score is not None:
                found.append(drop_gate(drop, score))
        if (least := limits.get("min_sqnr")) is not None:
            if data is None:
                raise RecipeError(
                    "min_sqnr compares outputs with those of float; give data=… to run both on."
                )
            found.append(sqnr_gate(least, fidelity(float_path, path, data, samples, threads)))
        if (least := limits.get("min_speed")) is not None:
            if speed is None:
                speed = measured_speed(float_path, path, data, threads, least)
            if speed is not None:
                found.append(speed_gate(least, speed))
        if (most := limits.get("max_size")) is not None:
            sizes = [io.weight_bytes(io.load(one)) for one in (float_path, path)]
            found.append(size_gate(most, sizes[1] / max(sizes[0], 1)))
    name = model_title(quantized) if isinstance(quantized, str | Path) else ""
    return tuple(replace(gate, model=name) for gate in found)


def fidelity(model: Any, quantized: Any, data: Any, samples: int | None, threads: int | None) -> float:
    """Return the SQNR of the worst part of the outputs in dB, over the first samples of the data."""
    first, second = (Session.open(path, threads=threads) for path in (model, quantized))
    feeds = iter(Feeds(data, first.inputs, limit=samples or _SAMPLES))
    seen = list(itertools.islice(feeds, _SAMPLES_LOOKED_AT))
    outputs = outputs_of([first.run(sample) for sample in seen], seen[0])
    sums = [
        tallies(outputs, first.run(sample), second.run(sample), sample)
        for sample in itertools.chain(seen, feeds)
    ]
    return judged(outputs, sums).sqnr_db
