"""The rule by which one of the trials is chosen.

::

    value = s · ln(speed) + fidelity − b · ln(bytes)
    s, b = 1 and 0.3, unless an objective says otherwise (octavo.tuning.objective)
    fidelity = (1 − t) · (0.03 · min(SQNR, 30 dB) + 0.01 · (SQNR from 30 to 40 dB)) + 3 · t · agreement
               − 0.03 · (20 dB − SQNR, if that is positive)
    t = n / (n + 1000) for an agreement that was counted in n places
    fidelity = −c · nats of a language model that its predictions lose (octavo.tuning.language)

3 dB weigh as much as 9 % of speed, beyond 30 dB a third of that, beyond 40 dB nothing: nobody sees it. Where
answers (classes, boxes, characters) were compared in many places, that tells what the error does, and
decibels say little more, unless they are below the 20 that are requested: one place in a hundred with another
answer weighs as much as 3 %. Where the places were few it is the other way round: of 1000 a share of 99 % is
known to a third of a percent. A quarter of the bytes weighs as much as half the speed again. So a trial
that is a third faster wins unless it is some 10 dB or 10 places in a hundred further off. With a limit on
what a task may lose fidelity is settled, and speed and size alone count.

**Doing nothing is a choice too.** The float model, as it is or prepared, has its measured speed, all its
fidelity and all its bytes. A trial that gains less in speed and size than a quarter of the fidelity that it
loses is refused: a model of 24 dB that saves 6 % of the bytes is, one that saves half of them is not.

**Noise wins nothing.** A trial counts with the lower end of its interval of speed. Those that can't be told
apart from the one with the highest value count as equally fast, and the one that is best in all else is
taken; of those that are less than 0.015 worse, the one of fewest steps, as each step fits the model to its
samples, and then of fewest layers whose ranges are found at run time. A trial that fits the last layers of
the one taken to float's probabilities takes its place, unless held-back samples show it to be worse.

**What is promised is a faster model.** A trial that is less than 5 % faster than float, as much as two
sessions of one model may differ, or that may be slower, is taken only where no other will do, or where those
that are faster have more than 0.6 × the bytes and are worth less.
A trial that only compresses weights runs the float model's kernels; it has to win by 0.05, as much as two
sessions of one model may differ in speed. One that leaves a kind of operators in float for speed is left
aside where it is no faster than the one that it was to outrun.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from octavo.errors import OutputError
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning.candidates import DISTILL
from octavo.tuning.fidelity import Fidelity
from octavo.tuning.requirements import ALIKE, FAITHFUL_DB, Requirements
from octavo.tuning.trial import UNKNOWN, Trial

NOISE = 0.1  # speeds that differ by more are not the same, however wide their intervals
GOOD_DECIBELS, ENOUGH_DECIBELS = 30.0, 40.0  # dB beyond which more is worth less, and nothing
PER_DB, PER_DB_MORE = 0.03, 0.01  # of ln(speed)
PER_AGREEMENT = 3.0  # of ln(speed), for equal answers in all places
FEW_PLACES = 1000  # an agreement that was counted in so many places has half its weight
LOSS_BESIDE_FLOAT = 0.25  # beside the float model what is lost weighs less: what meets the floor can be used
SMALL_DIFFERENCE = 0.015  # of fidelity and size, half a decibel: what the samples held back do not tell apart
MAX_SIZE = 0.6  # times the bytes of float, what is promised beside speed
IDLE = ALIKE  # what a trial is worth less that runs float: what may be noise between two sessions of it


def value(trial: Trial, requirements: Requirements) -> float:
    """Return what a trial is worth."""
    rest = closeness(trial, requirements) if requirements.max_drop is None else 0.0
    idle = IDLE if trial.runs_float else 0.0
    weights = requirements.optimize.weights
    gain = weights.speed * math.log(max(surely(trial), 1e-6))
    return gain + rest - weights.size * math.log(trial.bytes or 1) - idle


@dataclass(frozen=True)
class Unchanged:
    """The float model: its bytes, and its speed once it is prepared, as a multiple of what it was."""

    bytes: int
    prepared: Ratio | None = None

    @property
    def speed(self) -> float:
        """Return what the model runs at without being quantized; preparing counts where it surely pays."""
        gain = self.prepared
        return gain.value if gain is not None and gain.low > 1 + ALIKE else 1.0


def worth(trial: Trial, requirements: Requirements, unchanged: Unchanged) -> float:
    """Return how much more a trial is worth than the float model, in what the requirements leave open."""
    weights = requirements.optimize.weights
    gain = weights.speed * math.log(max(speed(trial), 1e-6) / unchanged.speed)
    if requirements.least_speed < 1:
        gain = max(gain, 0.0)
    if not requirements.settles_fidelity:
        gain -= lost(trial, requirements) * LOSS_BESIDE_FLOAT
    return gain + weights.size * math.log(unchanged.bytes / trial.bytes if trial.bytes else 1.0)


def lost(trial: Trial, requirements: Requirements) -> float:
    """Return how much more a trial would be worth if it were exact, at the same speed."""
    return closeness(_exact(trial), requirements) - closeness(trial, requirements)


def _exact(trial: Trial) -> Trial:
    """Return a trial as if it computed what float does."""
    told = trial.predictions
    return replace(
        trial,
        sqnr_db=ENOUGH_DECIBELS,
        agreement=None if trial.agreement is None else 1.0,
        predictions=told and replace(told, kl=0.0, perplexity=told.float_perplexity),
    )


def with_exact_weights(trial: Trial, weights: Fidelity) -> Trial:
    """Return a trial as if it lost nothing by its weights, from what they lose with exact activations.

    Errors of weights and of activations are independent, so that their powers add up; however weights are
    rounded, the error of the activations stays. What changes an answer is an error larger than its margin,
    and small margins are all as frequent: their share falls with the error's standard deviation.
    """
    left: dict[str, float] = {}  # of the error's power, for each part
    for label, decibels in trial.parts.items():
        of_weights = 10 ** ((decibels - weights.parts.get(label, math.inf)) / 10)
        left[label] = max(1 - of_weights, 1e-9)
    parts = {label: decibels - 10 * math.log10(left[label]) for label, decibels in trial.parts.items()}
    same = trial.agreement
    return replace(
        trial,
        parts=parts,
        sqnr_db=min(parts.values(), default=trial.sqnr_db),
        agreement=None if same is None else 1 - (1 - same) * math.sqrt(min(left.values(), default=1.0)),
    )


def missed(trial: Trial, requirements: Requirements, unchanged: Unchanged | None) -> str | None:
    """Why a trial can't be chosen: what it misses, or that the float model is worth more; None if it can."""
    if (reason := requirements.missed(trial)) is not None:
        return reason
    if trial.speed is None:
        return "the time limit ended the search before it was timed"
    if unchanged is None or worth(trial, requirements, unchanged) > 0:
        return None
    return f"worth less than the float model as it is ({words(trial)}{_size_words(trial)})"


def _size_words(trial: Trial) -> str:
    return f", {trial.size:.2f} × the bytes" if trial.size is not None else ""


def closeness(trial: Trial, requirements: Requirements) -> float:
    """Fidelity in units of ln(speed); of a language model what its predictions lose."""
    if trial.predictions is not None:
        return -requirements.optimize.weights.nat * min(trial.predictions.lost, 1e3)
    decibels = trial.sqnr_db if trial.sqnr_db is not None else 0.0
    same = trial.agreement if trial.agreement is not None else 1.0
    trust = trial.places / (trial.places + FEW_PLACES)
    good = max(min(decibels, GOOD_DECIBELS), -200.0)
    more = min(max(decibels - GOOD_DECIBELS, 0.0), ENOUGH_DECIBELS - GOOD_DECIBELS)
    short = max(FAITHFUL_DB - max(decibels, -200.0), 0.0) if trial.agreement is not None else 0.0
    by_decibels = (1 - trust) * (PER_DB * good + PER_DB_MORE * more) - PER_DB * short
    return by_decibels + PER_AGREEMENT * trust * same


def standing(trial: Trial, requirements: Requirements) -> float:
    """Return what decides where speed does not: fidelity and size."""
    return closeness(trial, requirements) - requirements.optimize.weights.size * math.log(trial.bytes or 1)


def pick(
    trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged | None = None
) -> tuple[Trial, bool, str]:
    """Return the best, whether it meets the requirements, and why it is this one."""
    good = _good(trials, requirements, unchanged)
    if good:
        plain = [trial for trial in good if trial.candidate.refines is None] or good
        first = max(plain, key=lambda trial: value(trial, requirements))
        rivals = [trial for trial in plain if alike(trial, first) and trial.runs_float <= first.runs_float]
        best = _refined(_simplest(rivals, requirements), good, requirements)
        return best, True, f"{best.name}: {words(best)}{_promise(best)}"
    ran = [trial for trial in trials if trial.error is None]
    if not ran:
        raise OutputError(_errors(trials))
    faithful = [trial for trial in ran if requirements.unfaithful(trial) is None]
    best = max(faithful, key=speed) if faithful else max(ran, key=lambda trial: _nearest(trial, requirements))
    reason = missed(best, requirements, unchanged)
    return best, False, f"no trial meets the requirements; the closest is {best.name}: {reason}"


def is_settled(
    trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged, apart: float = 0.0
) -> bool:
    """Whether the same trial is chosen wherever within their intervals the speeds are.

    ``apart`` is what speeds that were measured in different sessions may differ by besides, in ln(speed).
    """
    timed = [trial for trial in trials if trial.error is None and trial.speed is not None]
    if not timed:
        return True
    widths = {trial.speed: math.hypot(trial.speed.half_width, apart) for trial in timed if trial.speed}
    cases = [{one: sign} for one in widths for sign in (-1, 1)]
    cases += [{one: -1, other: 1} for one, other in permutations(widths, 2)]
    best, is_met, _ = pick(timed, requirements, unchanged)
    for signs in cases:
        moved = {one: _moved(one, sign * widths[one]) for one, sign in signs.items()}
        then = [replace(one, speed=moved.get(one.speed, one.speed)) for one in timed if one.speed]
        found, would_be_met, _ = pick(then, requirements, unchanged)
        if found.candidate is not best.candidate or would_be_met != is_met:
            return False
    return True


def _moved(given: Ratio, by: float) -> Ratio:
    """Return a speed with its interval, moved by so much of ln(speed)."""
    factor = math.exp(by) if math.isfinite(by) else 1.0
    return Ratio(given.value * factor, given.low * factor, given.high * factor)


def _errors(trials: Sequence[Trial]) -> str:
    """Return why no trial gave a model; a reason that all of them share is said once."""
    if len({trial.error for trial in trials}) == 1:
        return str(trials[0].error)
    listed = " ".join(f"{trial.name}: {trial.error}" for trial in trials)
    return f"No trial produced a model. {listed}"


def _promise(trial: Trial) -> str:
    """Return the remark about a result that is not faster than float."""
    if trial.runs_float and speed(trial) < 1 + ALIKE:
        return (
            "; it runs as float and is no faster, only smaller: nothing that computes with integers was"
            " faster than float and close enough to it"
        )
    if trial.speed is not None and not trial.speed.is_known:
        return "; its speed could not be measured reliably on this machine"
    if trial.speed is not None and speed(trial) < 1 + ALIKE:
        return "; it is hardly faster than float, only smaller"
    return ""


def _simplest(rivals: Sequence[Trial], requirements: Requirements) -> Trial:
    """Return the best by fidelity and size; of those that are hardly any worse, the simplest.

    That is the one of fewest steps, then of fewest layers whose ranges are found at run time. What decides
    must not be a hundredth of a decibel: which speeds count as alike changes from run to run.
    """
    highest = max(standing(trial, requirements) for trial in rivals)
    near = [trial for trial in rivals if standing(trial, requirements) >= highest - SMALL_DIFFERENCE]
    return min(near, key=lambda trial: (*_changes(trial), -standing(trial, requirements)))


def _refined(best: Trial, good: Sequence[Trial], requirements: Requirements) -> Trial:
    """Return the trial that fits the numbers of the best one further, unless it is worse by its answers.

    Such a step has left samples out by itself to see what it gains, many more than the search has held back.
    """
    least = closeness(best, requirements) - SMALL_DIFFERENCE
    refining = [one for one in good if one.candidate.refines == best.name and _is_fitted(one)]
    return next((one for one in refining if closeness(one, requirements) >= least), best)


def _is_fitted(trial: Trial) -> bool:
    """Whether the step that refines a trial changed anything."""
    reports = trial.result.steps if trial.result is not None else ()
    return any(report.step == DISTILL and report.changed for report in reports)


def _changes(trial: Trial) -> tuple[int, int]:
    """Return the number of steps, and of layers whose ranges are found at run time."""
    recipe = trial.candidate.recipe
    return len(recipe.steps), len(recipe.dynamic_nodes)


def _good(trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged | None) -> list[Trial]:
    """The trials that meet the requirements; only those surely faster, if any of them is smaller too."""
    good = [trial for trial in trials if missed(trial, requirements, unchanged) is None]
    good = [trial for trial in good if not _gains_nothing(trial, good)]
    fast = [trial for trial in good if is_faster(trial, requirements)]
    return fast if any(is_small(trial) for trial in fast) else good


def is_small(trial: Trial) -> bool:
    """Whether more than half of the weights became integers of 8 bits: 1 − ¾ · ½ is 0.6 × the bytes."""
    return trial.size is None or trial.size <= MAX_SIZE


def is_faster(trial: Trial, requirements: Requirements) -> bool:
    """Whether a trial is faster than is required by more than two sessions of one model may differ.

    Where a speed below float's is enough, speed is no promise, and each trial keeps it.
    """
    least = requirements.least_speed
    return least < 1 or (speed(trial) >= least * (1 + ALIKE) and surely(trial) > least)


def _gains_nothing(trial: Trial, good: Sequence[Trial]) -> bool:
    """Whether a trial is not faster than the one that it was to beat, which meets the requirements too."""
    return any(other.name == trial.candidate.faster_than and alike(other, trial) for other in good)


def _nearest(trial: Trial, requirements: Requirements) -> tuple[float, float]:
    return (-trial.score.lost if trial.score is not None else UNKNOWN, closeness(trial, requirements))


def alike(trial: Trial, other: Trial) -> bool:
    """Whether a trial is as fast, as far as measuring shows: nearly so, or within the noise of both."""
    if speed(trial) >= speed(other) * (1 - ALIKE):
        return True
    if trial.speed is None or other.speed is None or speed(trial) < speed(other) * (1 - NOISE):
        return False
    return not trial.speed.differs_from(other.speed)


def best_so_far(trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged) -> Trial | None:
    """Return the trial of the highest value among those that can be chosen."""
    good = _good(trials, requirements, unchanged)
    return max(good, key=lambda trial: value(trial, requirements), default=None)


def could_win(
    hoped: Trial, trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged, by: float = 0.0
) -> bool:
    """Whether a trial would be worth more than all others if it were exact: then it is worth making."""
    best = best_so_far(trials, requirements, unchanged)
    if best is None:
        return True
    if is_faster(best, requirements) != is_faster(hoped, requirements):
        return is_faster(hoped, requirements)
    answers = best if hoped.agreement is None else hoped
    same = None if answers.agreement is None else 1.0
    exact = replace(_exact(hoped), agreement=same, places=answers.places)
    return value(exact, requirements) > value(best, requirements) + by


def compressed_could_win(trials: Sequence[Trial], requirements: Requirements, unchanged: Unchanged) -> bool:
    """Whether the float model with a quarter of its bytes may be worth more than all that can be chosen."""
    best = best_so_far(trials, requirements, unchanged)
    if best is None:
        return True
    at_speed = Ratio(unchanged.speed, unchanged.speed, unchanged.speed)
    hoped = replace(best, speed=at_speed, bytes=unchanged.bytes // 4)
    return could_win(hoped, trials, requirements, unchanged, by=IDLE)


def speed(trial: Trial) -> float:
    """Times as fast as float, as measured; 0 where it was not."""
    return trial.speed.value if trial.speed is not None else 0.0


def surely(trial: Trial) -> float:
    """Times as fast as float at least; 0 where that was not measured."""
    return trial.speed.low if trial.speed is not None else 0.0


def words(trial: Trial) -> str:
    """Return a trial's figures in a few words."""
    told = [f"{trial.speed.value:.2f} × as fast as float"] if trial.speed is not None else []
    if trial.tokens is not None:
        paces = {"prompts": trial.tokens.prefill, "tokens": trial.tokens.decode}
        told = [f"{name} {one.ratio.value:.2f} × as fast" for name, one in paces.items() if one is not None]
    if trial.predictions is not None:
        found = trial.predictions
        told.append(f"KL {found.kl:.3f}")
        told.append(f"perplexity {found.perplexity:.2f} (float {found.float_perplexity:.2f})")
    elif trial.sqnr_db is not None:
        told.append(f"{trial.sqnr_db:.1f} dB")
    if trial.score is not None:
        told.append(f"{trial.score} (float {trial.score.float_text})")
    return ", ".join(told)
