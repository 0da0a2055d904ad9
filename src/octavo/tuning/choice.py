"""The rule by which one of the trials is chosen.

::

    value = ln(speed) + fidelity − 0.3 · ln(bytes)
    fidelity = (1 − t) · (0.03 · min(SQNR, 30 dB) + 0.01 · (SQNR from 30 to 40 dB)) + 3 · t · agreement
    t = n / (n + 200) for an agreement that was counted in n places

3 dB weigh as much as 9 % of speed, beyond 30 dB a third of that, beyond 40 dB nothing: nobody sees it. Where
the best class was compared in many places, that tells what the error does, and decibels say little more: one
place in a hundred with another class weighs as much as 3 %. Where the places were few it is the other way
round. A quarter of the bytes weighs as much as half the speed again. So a trial that is a third faster wins
unless it is some 10 dB or 10 places in a hundred further off. With a limit on what a task may lose fidelity
is settled, and speed and size alone count. Trials that are as fast as the one with the highest value, as far
as measuring shows, count as equally fast, and the one that is best in all else is taken; of those that are
less than 0.015 worse, the one of fewest steps, as each step fits the model to its samples. One that is
hardly as fast as was demanded, and may be slower, is taken only where no other will do. A trial that only
stores weights has the speed of float, as it is float that runs; it has to win by a value that is higher by
0.05. One that leaves a kind of operators float for speed is left aside where it is no faster than the one
that it was to outrun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from octavo.errors import OutputError
from octavo.evaluation.latency import Ratio
from octavo.tuning.trial import ALIKE, UNKNOWN, Demands, Trial

NOISE = 0.1  # and so do those that differ by less than this where their intervals meet
GOOD, ENOUGH = 30.0, 40.0  # dB beyond which more is worth less, and nothing
PER_DB, PER_DB_MORE = 0.03, 0.01  # of ln(speed)
PER_AGREEMENT = 3.0
FEW_PLACES = 200  # an agreement that was counted in so many places has half its weight
PER_SIZE = 0.3
LITTLE = 0.015  # of fidelity and size, half a decibel: what the samples held back do not tell apart
IDLE = 0.05  # what a trial is worth less that runs float: quantizing is to make a model faster


def value(trial: Trial, demands: Demands) -> float:
    """What a trial is worth."""
    rest = closeness(trial) if demands.max_drop is None else 0.0
    idle = IDLE if trial.runs_float else 0.0
    return math.log(max(speed(trial), 1e-6)) + rest - PER_SIZE * math.log(trial.bytes or 1) - idle


def closeness(trial: Trial) -> float:
    """Fidelity in units of ln(speed)."""
    decibels = trial.sqnr_db if trial.sqnr_db is not None else 0.0
    same = trial.agreement if trial.agreement is not None else 1.0
    trust = trial.places / (trial.places + FEW_PLACES)
    good = max(min(decibels, GOOD), -200.0)
    more = min(max(decibels - GOOD, 0.0), ENOUGH - GOOD)
    return (1 - trust) * (PER_DB * good + PER_DB_MORE * more) + PER_AGREEMENT * trust * same


def standing(trial: Trial) -> float:
    """What decides where speed does not: fidelity and size."""
    return closeness(trial) - PER_SIZE * math.log(trial.bytes or 1)


def pick(trials: Sequence[Trial], demands: Demands) -> tuple[Trial, bool, str]:
    """The best, whether it meets the demands, and why it is this one."""
    good = _good(trials, demands)
    if good:
        first = max(good, key=lambda trial: value(trial, demands))
        rivals = [trial for trial in good if alike(trial, first) and trial.runs_float <= first.runs_float]
        best = _simplest(rivals)
        return best, True, f"{best.name}: {words(best)}"
    ran = [trial for trial in trials if trial.error is None]
    if not ran:
        listed = "; ".join(f"{trial.name}: {trial.error}" for trial in trials)
        raise OutputError(f"No way of quantizing the model came out. {listed}")
    faithful = [trial for trial in ran if demands.unfaithful(trial) is None]
    best = max(faithful, key=speed) if faithful else max(ran, key=_nearest)
    missed = "; ".join(f"{trial.name}: {demands.missed(trial)}" for trial in trials)
    return best, False, f"nothing meets the demands. {missed}"


def _simplest(rivals: Sequence[Trial]) -> Trial:
    """The best by fidelity and size; of those that are hardly any worse, the one of fewest steps."""
    highest = max(map(standing, rivals))
    near = [trial for trial in rivals if standing(trial) >= highest - LITTLE]
    return min(near, key=lambda trial: (len(trial.candidate.recipe.steps), -standing(trial)))


def _good(trials: Sequence[Trial], demands: Demands) -> list[Trial]:
    """The trials that meet the demands; only those that do not owe it to the noise, if there are any."""
    good = [trial for trial in trials if demands.missed(trial) is None]
    good = [trial for trial in good if not _in_vain(trial, good)]
    return [trial for trial in good if not _is_doubtful(trial, demands)] or good


def _is_doubtful(trial: Trial, demands: Demands) -> bool:
    """Whether a trial is hardly as fast as was demanded, and may be slower."""
    if trial.runs_float or trial.speed is None:
        return speed(trial) < demands.min_speed
    return speed(trial) < demands.min_speed * (1 + ALIKE) and trial.speed.low < demands.min_speed


def _in_vain(trial: Trial, good: Sequence[Trial]) -> bool:
    """Whether a trial is no faster than the one that it was to outrun, which meets the demands too."""
    return any(other.name == trial.candidate.faster_than and alike(other, trial) for other in good)


def _nearest(trial: Trial) -> tuple[float, float]:
    return (-trial.score.lost if trial.score is not None else UNKNOWN, closeness(trial))


def alike(trial: Trial, other: Trial) -> bool:
    """Whether a trial is as fast, as far as measuring shows: nearly so, or within the noise of both."""
    if speed(trial) >= speed(other) * (1 - ALIKE):
        return True
    if trial.speed is None or other.speed is None or speed(trial) < speed(other) * (1 - NOISE):
        return False
    return trial.speed.high >= other.speed.low


def stored_could_win(trials: Sequence[Trial], demands: Demands, float_bytes: int) -> bool:
    """Whether float itself with a quarter of its bytes may be worth more than all that meets the demands."""
    good = _good(trials, demands)
    best = max(good, key=lambda trial: value(trial, demands), default=None)
    if best is None or _is_doubtful(best, demands):
        return True
    same = None if best.agreement is None else 1.0
    speed_of_float = Ratio(1.0, 1.0, 1.0)
    hoped = replace(best, speed=speed_of_float, sqnr_db=ENOUGH, agreement=same, bytes=float_bytes // 4)
    return value(hoped, demands) - IDLE > value(best, demands)


def speed(trial: Trial) -> float:
    """Times as fast as float: 1 where float runs, whatever a clock says; 0 where it was not measured."""
    if trial.speed is None:
        return 0.0
    return 1.0 if trial.runs_float else trial.speed.value


def words(trial: Trial) -> str:
    """A trial's figures in a few words."""
    told = [f"{trial.speed.value:.2f} × as fast as float"] if trial.speed is not None else []
    if trial.sqnr_db is not None:
        told.append(f"{trial.sqnr_db:.1f} dB")
    if trial.score is not None:
        told.append(f"{trial.score.name} {trial.score.value:.4g} (float {trial.score.float_value:.4g})")
    return ", ".join(told)
