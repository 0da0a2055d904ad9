"""Parts that are judged at once: several that hold one by one may lose too much together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from octavo.folders import beside
from octavo.folders.fidelity import Figure
from octavo.folders.making import Trial
from octavo.folders.tasks import Task
from octavo.folders.variants import Floor

NOT_SLOWER = 0.97  # of float's speed, which counts as no slower: shorter than timing can tell apart


def judge_together(trials: list[Trial], task: Task) -> list[str]:
    """Refuse the worst part of a variant whose parts lose too much together; return the figures that hold."""
    notes = []
    tried = {trial.variant.name: trial.variant for trial in trials if not trial.variant.is_float}
    for variant in tried.values():
        while True:
            made = [trial for trial in trials if trial.variant == variant]
            figure = _figure(made, task)
            if figure is None:
                break
            if figure.holds(variant.floor):
                count = len(_judged(made, task))
                notes.append(f"{variant.name} in {count} parts at once: {figure}")
                break
            worst = _worst(made, task)
            if worst.file is not None:
                beside.remove(worst.file)
            reason = _lost(f"the other parts in {variant.name}", figure, variant.floor)
            trials[trials.index(worst)] = replace(worst, file=None, reason=reason)
    return notes


@dataclass
class Choice:
    """One variant of each part; parts that are not there stay float."""

    by_part: dict[str, Trial]
    lost: dict[tuple[str, str], str] = field(default_factory=dict)  # part and variant, and why not that one
    figure: str = ""  # of all of them at once


def chosen_together(rows: Mapping[str, Sequence[Trial]], task: Task | None) -> Choice:
    """Choose the first variant of each part, or such that hold together.

    Where they lose too much, the worst part takes the next of its row, and float after the last.
    """
    left = {part: list(row) for part, row in rows.items()}
    choice = Choice({})
    while True:
        choice.by_part = {part: row[0] for part, row in left.items() if row}
        figure = _figure(list(choice.by_part.values()), task) if task is not None else None
        if figure is None or task is None:
            return choice
        judged = _judged(choice.by_part.values(), task)
        loosest = max((trial.variant.floor for trial in judged), key=lambda floor: floor.changed)
        if figure.holds(loosest):
            choice.figure = f"the variants chosen for {len(judged)} parts at once: {figure}"
            return choice
        worst = left[_worst(judged, task).part.name].pop(0)
        choice.lost[worst.part.name, worst.variant.name] = _lost("those of the other parts", figure, loosest)


def by_preference(trials: Sequence[Trial]) -> list[Trial]:
    """Variants of one part that hold, the smallest first; slower ones than float only if all are."""
    held = sorted(
        (one for one in trials if one.holds and not one.variant.is_float), key=lambda one: one.bytes
    )
    return [one for one in held if not is_slower(one)] or held[:1]


def is_slower(trial: Trial) -> bool:
    """Whether a variant was timed, and is slower than float."""
    return trial.speed is not None and trial.speed.high < NOT_SLOWER


def _judged(trials: Iterable[Trial], task: Task) -> list[Trial]:
    """The variants in files that the task's answers depend on."""
    return [one for one in trials if one.holds and one.file is not None and task.judges(one.part)]


def _figure(trials: Sequence[Trial], task: Task) -> Figure | None:
    """What variants of several parts lose at once; None where there are none or one."""
    made = _judged(trials, task)
    if len(made) < 2:
        return None
    return task.figure({one.part.name: one.file for one in made if one.file is not None})


def _worst(trials: Sequence[Trial], task: Task) -> Trial:
    return max(_judged(trials, task), key=lambda trial: trial.figures[-1].value)


def _lost(others: str, figure: Figure, floor: Floor) -> str:
    return f"together with {others} {figure}, and {figure.limit(floor)} is required"
