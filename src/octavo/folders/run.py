"""Quantizing a folder: find its parts, run them in float, make and judge the variants of each, write all.

A variant that does not load, is not finite, or is further from float than its floor allows is not written.
The output appears as a whole: the models, what belongs beside them, a manifest (``octavo.json``) and a card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from octavo.core import scratch
from octavo.core.files import write_text
from octavo.core.progress import Progress, silent
from octavo.errors import ModelError, OutputError, RecipeError, closest
from octavo.evaluation.timing.footprint import footprint
from octavo.folders import beside
from octavo.folders.beside import MANIFEST, check_output, new_folder
from octavo.folders.common_weights import with_integers_of
from octavo.folders.discovery import ModelFolder, read_folder
from octavo.folders.fidelity import LOGITS, Reader, Reference
from octavo.folders.generation import Pipeline
from octavo.folders.making import Trial, VariantMaker
from octavo.folders.parts import STATES, Part, Role
from octavo.folders.result import FolderResult
from octavo.folders.samples import FolderData, StoredFeeds, folder_data, held_back
from octavo.folders.tasks import Task, task_of
from octavo.folders.variants import AUTO, FP32, Floor, Variant, chosen_variants
from octavo.model.runtime.verification import verify
from octavo.reporting.folder_tables import folder_card
from octavo.result import versions
from octavo.tuning.requirements import Drop

_PAIR = (Role.DECODER, Role.DECODER_WITH_PAST)  # parts that have most weights in common
NOT_SLOWER = 0.97  # of float's speed, which counts as no slower: shorter than timing can tell apart
# What auto tries, the smallest first: calibrated integers pay in encoders, 4-bit weights where each token
# reads all weights once.
_AUTO: Mapping[bool, tuple[str, ...]] = {
    False: ("static", "q8", "fp16"),
    True: ("q4", "q8", "fp16"),
}


def quantize_folder(
    folder: str | Path,
    data: Any = None,
    *,
    output: str | Path,
    variants: str | Sequence[str] = "web",
    parts: Mapping[str, str | Sequence[str]] | None = None,
    samples: int | None = None,
    tokenizer: str | Path | None = None,
    max_length: int | None = None,
    column: str | None = None,
    labels: Any = None,
    max_drop: Drop | str | float | None = None,
    max_kl: float | None = None,
    min_cosine: float | None = None,
    min_sqnr: float | None = None,
    threads: int | None = None,
    seconds: float = 1.0,
    progress: Progress | None = None,
) -> FolderResult:
    """Write variants of all parts of a model folder, each compared with float; see docs/folders.md.

    ``variants`` is ``web`` (what transformers.js loads by dtype), ``all``, ``auto`` (one for each part, under
    the part's own name) or a list of names; ``parts`` has others for some parts, by name or pattern. ``data``
    are texts, images or arrays for the first part of the pipeline, or a dict of them by part. Of a decoder
    the samples are prompts: its cache is filled by running it. ``labels`` are the right answers: a file, or
    one for each sample; ``max_drop`` is how much of them may be lost. It, ``max_kl``, ``min_cosine`` and
    ``min_sqnr`` replace the floors of all variants; ``seconds`` is how long each is timed, 0 for not at all.
    """
    root, target = Path(folder), Path(output)
    check_output(target, root, [data, tokenizer, labels])
    found = read_folder(root)
    wanted = _wanted(found, variants, parts)
    numbers = {"kl": max_kl, "answer_kl": max_kl, "cosine": min_cosine, "sqnr_db": min_sqnr}
    limits = {name: float(value) for name, value in numbers.items() if value is not None} | _lost(max_drop)
    wanted = {name: tuple(_with_floor(one, limits) for one in row) for name, row in wanted.items()}
    tell = progress if progress is not None else silent
    given = folder_data(
        found, data, samples=samples, tokenizer=tokenizer, max_length=max_length, column=column, labels=labels
    )
    with scratch.folder() as store, new_folder(target) as staged:
        tell("running in float", 0, None)
        pipeline = Pipeline(found, Path(store), threads)
        pipeline.run(given.samples, sampled=given.made_up)
        task = None if given.made_up else task_of(pipeline, given.judged)
        maker = Makers(found, pipeline, given, threads, seconds, task)
        run = _Run(found, maker, staged, wanted, variants == AUTO, tell)
        trials = run.all()
        result = _result(run, trials, target, given)
        _describe(staged, result)
    return result


def _wanted(
    folder: ModelFolder, variants: str | Sequence[str], parts: Mapping[str, str | Sequence[str]] | None
) -> dict[str, tuple[Variant, ...]]:
    """The variants of each part."""
    by_part: dict[str, tuple[Variant, ...]] = {}
    for part in folder.parts:
        names = _AUTO[part.role.generates] if variants == AUTO else variants
        by_part[part.name] = chosen_variants(names)
    for pattern, names in (parts or {}).items():
        hit = [p for p in folder.parts if fnmatchcase(p.name, pattern) or fnmatchcase(p.stem, pattern)]
        if not hit:
            known = [part.name for part in folder.parts]
            raise RecipeError(
                f"No part is called {pattern!r}{closest(pattern, known) or '.'} The folder has"
                f" {', '.join(known)}."
            )
        by_part.update({part.name: chosen_variants(names) for part in hit})
    return by_part


def _lost(max_drop: Drop | str | float | None) -> dict[str, Any]:
    """The limits of a task; no word or sample may be lost beyond what was said."""
    if max_drop is None:
        return {}
    most = max_drop if isinstance(max_drop, Drop) else Drop.parse(str(max_drop))
    return {"lost": most, "changed": most.amount, "always": 0}


def _with_floor(variant: Variant, limits: Mapping[str, Any]) -> Variant:
    floor: Floor = replace(variant.floor, **limits)
    return replace(variant, floor=floor)


@dataclass(frozen=True)
class Makers:
    """A maker for each part that the pipeline could feed."""

    folder: ModelFolder
    pipeline: Pipeline
    given: FolderData
    threads: int | None
    seconds: float
    task: Task | None = None

    def split(self, part: Part) -> tuple[StoredFeeds | None, StoredFeeds]:
        """The feeds to calibrate with, and those to compare on: of other samples where there are two."""
        feeds, ends = self.pipeline.feeds[part.name], self.pipeline.ends[part.name]
        held = held_back(len(ends))
        cut = ends[-held - 1] if len(ends) > held else 0
        compared = feeds.part(cut) if cut < len(feeds) else feeds
        if self.given.made_up and not part.role.generates:
            return None, compared
        return feeds.part(0, cut) if cut else feeds, compared

    def of(self, part: Part) -> VariantMaker:
        """The maker of a part."""
        reason = self.pipeline.missing.get(part.name)
        if reason is not None or not len(self.pipeline.feeds[part.name]):
            raise ModelError(
                "it can't be run, and so not be compared with float:"
                f" {(reason or 'the pipeline never reaches it').rstrip('.')}."
            )
        calibration, compared = self.split(part)
        reference = Reference(part, compared, self.threads, self._reader(part, len(compared)))
        task = self.task if self.task is not None and self.task.judges(part) else None
        return VariantMaker(part, calibration, reference, self.threads, self.seconds, task)

    def _reader(self, part: Part, count: int) -> Reader | None:
        """The decoder that reads a part's states, with the whole texts of the samples that are compared."""
        if part.role.generates or not set(part.outputs) & set(STATES.values()):
            return None
        for decoder in self.folder.parts:
            ends = self.pipeline.ends[decoder.name][-count:]
            is_first = decoder.reads_encoder and decoder.role is not Role.DECODER_WITH_PAST
            if is_first and LOGITS in decoder.outputs and ends[0]:
                feeds = self.pipeline.feeds[decoder.name]
                return Reader(decoder, [feeds[end - 1] for end in ends])
        return None


@dataclass
class _Run:
    """Makes all variants of all parts in a staged folder."""

    folder: ModelFolder
    makers: Makers
    staged: Path
    wanted: Mapping[str, tuple[Variant, ...]]
    auto: bool
    tell: Progress
    chosen: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    kept: dict[str, VariantMaker] = field(default_factory=dict)  # of parts that may be made again

    def all(self) -> list[Trial]:
        """Every variant of every part; raises where a part can't be written at all."""
        trials: list[Trial] = []
        count = sum(len(row) for row in self.wanted.values())
        for part in self.folder.parts:
            trials += self._of(part, len(trials), count)
        if not any(trial.holds for trial in trials):
            reasons: dict[tuple[str, str], list[str]] = {}
            for one in trials:
                reasons.setdefault((one.part.name, one.reason), []).append(one.variant.name)
            why = "; ".join(f"{part} {', '.join(names)}: {why}" for (part, why), names in reasons.items())
            raise OutputError(f"No variant of {self.folder.root} holds, so nothing was written: {why}")
        for first, later in self._pairs(trials):
            trials[trials.index(later)] = self._with_integers_of(first, later)
        self._judge_together(trials)
        self._share_weights(trials)
        return trials

    def _judge_together(self, trials: list[Trial]) -> None:
        """Refuse the worst part of a variant whose parts hold one by one, and lose too much together."""
        task = self.makers.task
        tried = {trial.variant.name: trial.variant for trial in trials if not trial.variant.is_float}
        for variant in tried.values():
            while task is not None:
                made = [t for t in trials if t.variant == variant and t.holds and task.judges(t.part)]
                files = {trial.part.name: trial.file for trial in made if trial.file is not None}
                if len(files) < 2 or self.auto:
                    break
                figure = task.figure(files)
                if figure.holds(variant.floor):
                    self.notes.append(f"{variant.name} in {len(files)} parts at once: {figure}")
                    break
                worst = max(made, key=lambda trial: trial.figures[-1].value)
                beside.remove(files[worst.part.name])
                reason = (
                    f"together with the other parts in {variant.name} {figure}, and"
                    f" {figure.limit(variant.floor)} is required"
                )
                trials[trials.index(worst)] = replace(worst, file=None, reason=reason)

    def _share_weights(self, trials: list[Trial]) -> None:
        """Store what a decoder and the one with its cache have in common once, variant by variant."""
        shared = []
        for pair in self._pairs(trials):
            files = [trial.file for trial in pair if trial.file is not None]
            if beside.share_weights(files):
                shared.append(pair[0].variant.name)
                for trial, file in zip(pair, files, strict=True):
                    verify(file, run=False, threads=self.makers.threads)
                    trials[trials.index(trial)] = replace(trial, bytes=beside.size_of(file))
        if shared:
            names = " and ".join(part.stem for part in self.folder.parts if part.role in _PAIR)
            self.notes.append(
                f"{names} have equal weights once, in the .onnx_data of the former: {', '.join(shared)}"
            )

    @staticmethod
    def _pairs(trials: Sequence[Trial]) -> list[tuple[Trial, Trial]]:
        """The decoder and the one with its cache, in each variant that both have in the same folder."""
        found = []
        for variant in dict.fromkeys(trial.variant.name for trial in trials):
            made = [t for t in trials if t.file is not None and t.holds and t.variant.name == variant]
            pair = [[t for t in made if t.part.role is role] for role in _PAIR]
            places = {t.file.parent for row in pair for t in row if t.file is not None}
            if [len(row) for row in pair] == [1, 1] and len(places) == 1:
                found.append((pair[0][0], pair[1][0]))
        return found

    def _with_integers_of(self, first: Trial, later: Trial) -> Trial:
        """The decoder with a cache with the integers of the other one, where it holds with them."""
        maker = self.kept.get(later.part.name)
        if maker is None or first.file is None or later.file is None or first.variant.is_float:
            return later
        made = with_integers_of((first.part.path, first.file), (later.part.path, later.file))
        return later if made is None else maker.remade(later, made)

    def _of(self, part: Part, done: int, count: int) -> list[Trial]:
        target = self.staged / beside.folder_of(self.folder, part, keep=self.auto)
        target.mkdir(parents=True, exist_ok=True)
        try:
            maker = self.makers.of(part)
        except ModelError as error:
            rows = [v for v in self.wanted[part.name] if not v.is_float]
            missed = [Trial(part, one, reason=str(error)) for one in rows]
            return [*missed, self._float(part, target, None)]
        if part.role is Role.DECODER_WITH_PAST:
            self.kept[part.name] = maker
        found: list[Trial] = []
        for number, variant in enumerate(self.wanted[part.name]):
            self.tell(f"{part.stem} {variant.name}", done + number, count)
            if variant.is_float:
                found.append(self._float(part, target, maker))
            else:
                found.append(maker.make(variant, target / f"{part.stem}{variant.suffix}.onnx"))
        return self._best(part, found, target, maker) if self.auto else found

    def _float(self, part: Part, target: Path, maker: VariantMaker | None) -> Trial:
        """Return the float part itself as a trial."""
        copied = beside.copy_model(part, target)
        trial = Trial(part, FP32, copied, part.bytes)
        if maker is None or not maker.seconds:
            return trial
        taken = footprint(copied, maker.reference.timed_feed, part.inputs, maker.threads)
        return replace(trial, memory_bytes=taken.memory_bytes, load_seconds=taken.load_seconds)

    def _best(self, part: Part, found: list[Trial], target: Path, maker: VariantMaker) -> list[Trial]:
        """Keep the smallest variant that holds and is not slower than float, under the part's own name."""
        held = sorted((one for one in found if one.holds), key=lambda one: one.bytes)
        quick = [one for one in held if one.speed is None or one.speed.high >= NOT_SLOWER]
        if not held:
            self.chosen[part.name] = FP32.name
            return [*found, self._float(part, target, maker)]
        best = (quick or held)[0]
        if not quick:
            self.notes.append(
                f"{part.name}: no variant that holds is as fast as float; the smallest was chosen"
            )
        self.chosen[part.name] = best.variant.name
        kept = []
        for one in found:
            if one is best and one.file is not None:
                kept.append(replace(one, file=beside.renamed(one.file, target / f"{part.stem}.onnx")))
            elif one.holds and one.file is not None:
                beside.remove(one.file)
                reason = f"it holds ({one.figures[0]}), and {best.variant.name} was chosen"
                kept.append(replace(one, file=None, reason=reason))
            else:
                kept.append(one)
        return kept


def _result(run: _Run, trials: Sequence[Trial], target: Path, given: FolderData) -> FolderResult:
    notes = run.notes
    if given.made_up:
        notes.append(
            "no data: inputs are random, and prompts are sampled from the model; give data for "
            "calibration and for meaningful figures"
        )
    elif len(given.samples) == 1:
        notes.append("the only sample serves both calibration and comparison; give more")
    if run.folder.is_for_genai and not run.auto:
        notes.append(
            "onnxruntime-genai opens the files that genai_config.json names: give a variant one of those"
            " names, or use --variants auto, which does"
        )
    known = [part for part in run.folder.parts if part.role is Role.MODEL]
    if known:
        notes.append(f"treated as plain models: {', '.join(part.name for part in known)}")
    if run.folder.links:
        names = ", ".join(path.relative_to(run.folder.root).as_posix() for path in run.folder.links)
        notes.append(f"not copied, as they are links to other places: {names}")
    placed = [
        replace(one, file=one.file.relative_to(run.staged)) if one.holds and one.file is not None else one
        for one in trials
    ]
    return FolderResult(
        run.folder.root,
        target,
        run.folder.parts,
        tuple(placed),
        run.chosen,
        given.described,
        copied=beside.copy_files(run.folder, run.staged),
        left_out=tuple(path.relative_to(run.folder.root).as_posix() for path in run.folder.left_out),
        notes=tuple(notes),
    )


def _describe(staged: Path, result: FolderResult) -> None:
    """Write the manifest and the card, and the settings that transformers.js needs."""
    beside.tell_about_weights(staged, result.written)
    data = result.to_dict()
    manifest = {**versions(), **data}
    write_text(staged / MANIFEST, json.dumps(manifest, indent=2, default=str) + "\n")
    write_text(staged / "README.md", folder_card(data, manifest))
