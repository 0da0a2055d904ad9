"""Quantizing a folder: find its parts, run them in float, make and judge the variants of each, write all.

A variant that does not load, is not finite, or is further from float than its floor allows is not written.
The output appears as a whole: the models, what belongs beside them, a manifest (``octavo.json``) and a card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from octavo.core import scratch
from octavo.core.files import json_text, write_text
from octavo.core.progress import Progress, silent
from octavo.errors import ModelError, OutputError, RecipeError, closest
from octavo.evaluation.timing.footprint import footprint
from octavo.folders import beside
from octavo.folders.beside import MANIFEST, check_output, new_folder
from octavo.folders.common_weights import with_integers_of
from octavo.folders.discovery import ModelFolder, read_folder
from octavo.folders.generation import Pipeline
from octavo.folders.makers import Makers
from octavo.folders.making import Trial, VariantMaker
from octavo.folders.merged_decoder import MergedDecoder, needs_merged
from octavo.folders.parts import Part, Role
from octavo.folders.result import FolderResult
from octavo.folders.samples import FolderData, Sample, folder_data
from octavo.folders.tasks import task_of
from octavo.folders.together import by_preference, chosen_together, is_slower, judge_together
from octavo.folders.variants import AUTO, FP32, Floor, Variant, chosen_variants
from octavo.model.runtime.verification import verify
from octavo.reporting.folder_tables import folder_card
from octavo.result import versions
from octavo.tuning.requirements import Drop

_PAIR = (Role.DECODER, Role.DECODER_WITH_PAST)  # parts that have most weights in common
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
    timed: dict[str, Sample] = field(default_factory=dict)  # what a part is timed with, if it can be run
    parts: list[Part] = field(default_factory=list)  # that were made of those of the folder

    def all(self) -> list[Trial]:
        """Every variant of every part; raises where no part can be written in any."""
        trials: list[Trial] = []
        count = sum(len(row) for row in self.wanted.values())
        for part in self.folder.parts:
            trials += self._of(part, len(trials), count)
        for first, later in self._pairs(trials):
            trials[trials.index(later)] = self._with_integers_of(first, later)
        if self.auto:
            trials = self._chosen(trials)
        elif not any(trial.holds for trial in trials):
            reasons: dict[tuple[str, str], list[str]] = {}
            for one in trials:
                reasons.setdefault((one.part.name, one.reason), []).append(one.variant.name)
            why = "; ".join(f"{part} {', '.join(names)}: {why}" for (part, why), names in reasons.items())
            raise OutputError(f"No variant of {self.folder.root} holds, so nothing was written: {why}")
        elif self.makers.task is not None:
            self.notes += judge_together(trials, self.makers.task)
        trials += self._merged(trials)
        self._share_weights(trials)
        return trials

    def _chosen(self, trials: Sequence[Trial]) -> list[Trial]:
        """Keep one variant of each part, under the part's own name, or the float part where none holds."""
        rows = {name: by_preference([t for t in trials if t.part.name == name]) for name in self.timed}
        choice = chosen_together(rows, self.makers.task)
        self.notes += [choice.figure] * bool(choice.figure)
        kept: list[Trial] = []
        for one in trials:
            best = choice.by_part.get(one.part.name)
            if one.file is None or not one.holds or one.variant.is_float:
                kept.append(one)
            elif one is best:
                place = one.file.with_name(one.part.path.name)
                kept.append(replace(one, file=beside.renamed(one.file, place)))
            else:
                beside.remove(one.file)
                instead = best.variant.name if best is not None else FP32.name
                reason = f"it holds ({one.figures[0]}), and {instead} was chosen"
                reason = choice.lost.get((one.part.name, one.variant.name), reason)
                kept.append(replace(one, file=None, reason=reason))
        for part in self.folder.parts:
            if part.name not in rows:
                continue
            best = choice.by_part.get(part.name)
            self.chosen[part.name] = best.variant.name if best is not None else FP32.name
            if best is None:
                kept.append(self._float(part, self._folder_of(part)))
            elif is_slower(best):
                self.notes.append(
                    f"{part.name}: no variant that holds is as fast as float; the smallest was chosen"
                )
        return kept

    def _merged(self, trials: Sequence[Trial]) -> list[Trial]:
        """The merged decoder that transformers.js loads, in each variant that both decoders have."""
        pairs = self._pairs(trials) if needs_merged(self.folder) and not self.auto else []
        if not pairs:
            return []
        try:
            decoder = MergedDecoder(pairs[0][0].part, pairs[0][1].part, self.makers)
        except ModelError as error:
            self.notes.append(f"the decoders can't be merged, and transformers.js loads merged ones: {error}")
            return []
        self.parts.append(decoder.part)
        self.timed[decoder.part.name] = decoder.timed_feed
        target = self._folder_of(pairs[0][0].part)
        return [
            self._float(decoder.part, target) if first.variant.is_float else decoder.trial(first, later)
            for first, later in pairs
        ]

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

    def _folder_of(self, part: Part) -> Path:
        return self.staged / beside.folder_of(self.folder, part, keep=self.auto)

    def _of(self, part: Part, done: int, count: int) -> list[Trial]:
        target = self._folder_of(part)
        target.mkdir(parents=True, exist_ok=True)
        try:
            maker = self.makers.of(part)
        except ModelError as error:
            rows = [v for v in self.wanted[part.name] if not v.is_float]
            missed = [Trial(part, one, reason=str(error)) for one in rows]
            return [*missed, self._float(part, target)]
        self.timed[part.name] = maker.reference.timed_feed
        if part.role is Role.DECODER_WITH_PAST:
            self.kept[part.name] = maker
        found: list[Trial] = []
        for number, variant in enumerate(self.wanted[part.name]):
            self.tell(f"{part.stem} {variant.name}", done + number, count)
            path = target / f"{part.stem if self.auto else part.base}{variant.suffix}.onnx"
            if path.name == part.path.name and not variant.is_float:
                found.append(Trial(part, variant, reason="it is what the folder has"))
            elif not variant.is_float:
                found.append(maker.make(variant, path))
            elif not self.auto:  # which takes float where nothing else is chosen
                found.append(self._float(part, target))
        return found

    def _float(self, part: Part, target: Path) -> Trial:
        """Return the float part itself as a trial."""
        copied = beside.copy_model(part, target)
        trial = Trial(part, FP32, copied, part.bytes)
        feed = self.timed.get(part.name)
        if feed is None or not self.makers.seconds:
            return trial
        taken = footprint(copied, feed, part.inputs, self.makers.threads)
        return replace(trial, memory_bytes=taken.memory_bytes, load_seconds=taken.load_seconds)


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
    if run.folder.variants:
        names = ", ".join(path.relative_to(run.folder.root).as_posix() for path in run.folder.variants)
        notes.append(f"not copied, as they were made of the other models: {names}")
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
        (*run.folder.parts, *run.parts),
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
    write_text(staged / MANIFEST, json_text(manifest) + "\n")
    write_text(staged / "README.md", folder_card(data, manifest))
