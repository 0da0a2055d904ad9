"""Try, measure, choose.

::

    data ─┬─ most of it ──► calibrate once ──► a trial for each candidate ─┬─► fidelity ──► speed ──► the best
          └─ held back ────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo import api
from octavo.calibration.data import Feeds
from octavo.comparison import Comparison, compare
from octavo.core.recipe import Recipe
from octavo.core.stats import Stats
from octavo.errors import DataError, ModelError, OctavoError, OutputError, RecipeError
from octavo.model import io, query
from octavo.model.samples import make, specs_of
from octavo.model.session import Session
from octavo.pipeline import Progress, silent
from octavo.result import check_output
from octavo.targets import Target
from octavo.targets import target as find_target
from octavo.tuning.candidates import Candidate, first_round, without
from octavo.tuning.judging import Feed, Reference, speeds
from octavo.tuning.trial import Demands, Trial, Tuned

HELD_BACK = 16  # samples at most, a quarter of the data at most
WEAK_DB = 18.0  # a layer with a smaller signal to noise ratio of its own is a candidate for float
WEAK_MOST = 4  # layers
ALIKE = 0.05  # speeds that differ by less count as the same, and fidelity decides


def tune(
    model: io.ModelSource,
    data: Any = None,
    *,
    target: str | Target = "ort-cpu",
    recipe: Recipe | str | Path | None = None,
    output: str | Path | None = None,
    demands: Demands | None = None,
    samples: int | None = None,
    threads: int | None = None,
    time_limit: float | None = None,
    seconds: float = 3.0,
    progress: Progress | None = None,
) -> Tuned:
    """Quantize a model in the way that measuring shows to be best.

    ``recipe`` is where all static candidates start. ``threads`` are those that the model will run with, as
    speed depends on them. With ``output`` the best is written there, if it meets the demands. After
    ``time_limit`` seconds no further trial is started.
    """
    tell = progress if progress is not None else silent
    ends = time.monotonic() + time_limit if time_limit is not None else None
    loaded = io.load(model)
    query.refuse_unsupported(loaded)
    if output is not None:
        check_output(loaded, Path(output))
    chosen = find_target(target)
    base = _base(recipe)
    split = _Split.of(data, loaded, samples)
    candidates = first_round(chosen, base, static=split.calibration is not None)
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        search = _Search(model, split, chosen, Path(folder), threads, tell, ends)
        search.run(candidates, seconds)
        wanted = demands if demands is not None else _usual(data)
        tuned = choose(search.trials, wanted, len(split.held), io.weight_bytes(loaded))
        if output is not None and tuned.met and tuned.best is not None and tuned.best.result is not None:
            tuned.best.result.save(output)
    return tuned


def _usual(data: Any) -> Demands:
    """Inputs that are made up say little about fidelity, and nothing is demanded of it there."""
    return Demands() if data is not None else Demands(min_sqnr=-math.inf)


def _base(recipe: Recipe | str | Path | None) -> Recipe | None:
    return recipe if recipe is None or isinstance(recipe, Recipe) else Recipe.load(recipe)


class _Part:
    """Some of the samples, as data that can be gone through again and again."""

    def __init__(self, feeds: Feeds, stop: int) -> None:
        self._feeds, self._stop = feeds, stop

    def __len__(self) -> int:
        return self._stop

    def __iter__(self) -> Iterator[Feed]:
        return self._feeds.portion(0, self._stop)


class _Split:
    """Data to calibrate with, and samples that were held back."""

    def __init__(self, calibration: Any, held: Sequence[Feed]) -> None:
        self.calibration = calibration
        self.held = held

    @classmethod
    def of(cls, data: Any, model: Any, samples: int | None) -> _Split:
        """A quarter of the samples is held back; without data, one is made from the model's inputs."""
        specs = specs_of(model)
        if data is None:
            return cls(None, [make(specs, seed, {}) for seed in range(2)])
        feeds = Feeds(data, specs, limit=samples)
        if feeds.length is None:
            feeds = Feeds(list(feeds), specs)
        total = len(feeds)
        if total < 2:
            raise DataError("Tuning needs two samples at least: one to calibrate with and one to judge by.")
        count = max(1, min(HELD_BACK, total // 4))
        return cls(_Part(feeds, total - count), list(feeds.portion(total - count, total)))


class _Search:
    def __init__(
        self,
        model: io.ModelSource,
        split: _Split,
        target: Target,
        folder: Path,
        threads: int | None,
        tell: Progress,
        ends: float | None,
    ) -> None:
        self.model, self.split, self.target, self.folder = model, split, target, folder
        self.threads, self.tell, self.ends = threads, tell, ends
        self.stats: Stats | None = None
        self.trials: list[Trial] = []
        self._files: dict[int, Path] = {}
        self.reference = Reference(_float_session(model, threads), split.held)

    def run(self, candidates: Sequence[Candidate], seconds: float) -> None:
        """All trials, and the speed of those that came out."""
        for number, candidate in enumerate(candidates):
            self.tell("try", number, len(candidates) + 1)
            self._try(candidate)
        static = next((t for t in self.trials if t.error is None and t.name.startswith("static")), None)
        weak = self._weak(static) if static is not None and self.split.calibration is not None else ()
        if static is not None and weak:
            self._try(without(static.candidate, weak))
        self.tell("measure", 0, 1)
        self._measure(seconds)

    def _try(self, candidate: Candidate) -> None:
        if self.trials and self.ends is not None and time.monotonic() > self.ends:
            self.trials.append(Trial(candidate, error="the time was over before it was tried"))
            return
        try:
            trial = self._trial(candidate)
        except (RecipeError, ModelError, DataError) as error:
            trial = Trial(candidate, error=str(error))
        self.trials.append(trial)

    def _trial(self, candidate: Candidate) -> Trial:
        path = self.folder / f"{len(self.trials)}.onnx"
        static = self.split.calibration is not None and not candidate.name.startswith("dynamic")
        if static and self.stats is None:
            plan = api.plan(self.model, candidate.recipe, target=self.target)
            self.stats = api.calibrate(
                self.model,
                plan,
                self.split.calibration,
                every_method=True,
                threads=self.threads,
                engine="serial",
                progress=self.tell,
            )
        result = api.quantize(
            self.model,
            self.split.calibration if static else None,
            recipe=candidate.recipe,
            target=self.target,
            stats=self.stats if static and not candidate.recipe.steps else None,
            output=path,
            threads=self.threads,
        )
        self._files[len(self.trials)] = path
        session = Session.open(path, threads=self.threads)
        decibels, same = self.reference.fidelity(session)
        return Trial(candidate, result, decibels, same, bytes=result.bytes)

    def _weak(self, trial: Trial) -> tuple[str, ...]:
        """The layers that lose most by themselves."""
        try:
            found = compare(self.model, self._files[self.trials.index(trial)], self.split.held[:4])
        except OctavoError:
            return ()
        return _weakest(found, trial)

    def _measure(self, seconds: float) -> None:
        running = [i for i, trial in enumerate(self.trials) if trial.error is None]
        if not running:
            return
        found = speeds(
            self.reference.session,
            [self._files[i] for i in running],
            self.split.held[0],
            threads=self.threads,
            seconds=seconds,
        )
        for index, speed in zip(running, found, strict=True):
            self.trials[index] = replace(self.trials[index], speed=speed)


def _weakest(found: Comparison, trial: Trial) -> tuple[str, ...]:
    planned = trial.result.plan.nodes if trial.result is not None else {}
    weak = [t for t in found.tensors if t.local is not None and t.local.sqnr < WEAK_DB and t.node in planned]
    weak.sort(key=lambda t: t.local.sqnr if t.local is not None else 0.0)
    return tuple(dict.fromkeys(t.node for t in weak))[:WEAK_MOST]


def _float_session(model: io.ModelSource, threads: int | None) -> Session:
    source = model if isinstance(model, str | Path) else io.load(model)
    return Session.open(source, threads=threads)


def choose(trials: Sequence[Trial], demands: Demands, held_back: int, float_bytes: int) -> Tuned:
    """The most faithful of the fastest among those that meet the demands; else the most faithful of all."""
    good = [trial for trial in trials if demands.missed(trial) is None]
    whole: Callable[..., Tuned] = lambda best, met, reason: Tuned(  # noqa: E731
        tuple(trials), best, met, reason, held_back, float_bytes, demands
    )
    if good:
        fastest = max(good, key=_speed)
        best = max((trial for trial in good if _alike(trial, fastest)), key=_fidelity)
        return whole(best, True, f"{best.name}: {_words(best)}")
    ran = [trial for trial in trials if trial.error is None]
    if not ran:
        listed = "; ".join(f"{trial.name}: {trial.error}" for trial in trials)
        raise OutputError(f"No way of quantizing the model came out. {listed}")
    best = max(ran, key=_fidelity)
    missed = "; ".join(f"{trial.name}: {demands.missed(trial)}" for trial in trials)
    return whole(best, False, f"nothing meets the demands. {missed}")


def _alike(trial: Trial, fastest: Trial) -> bool:
    """Whether a trial is as fast, as far as measuring shows: nearly so, or within the noise of both."""
    if _speed(trial) >= _speed(fastest) * (1 - ALIKE):
        return True
    return trial.speed is not None and fastest.speed is not None and trial.speed.high >= fastest.speed.low


def _speed(trial: Trial) -> float:
    return trial.speed.value if trial.speed is not None else 0.0


def _fidelity(trial: Trial) -> float:
    return trial.sqnr_db if trial.sqnr_db is not None else float("-inf")


def _words(trial: Trial) -> str:
    return f"{_speed(trial):.2f} × as fast as float, {_fidelity(trial):.1f} dB"
