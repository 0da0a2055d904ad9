"""One variant of one part: made, written, checked, compared with float and timed beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo import api
from octavo.emission.bnb4 import with_nf4_weights
from octavo.errors import ModelError, OctavoError
from octavo.evaluation.timing.bench import bench
from octavo.evaluation.timing.footprint import footprint
from octavo.evaluation.timing.latency import Ratio
from octavo.folders.fidelity import Figure, Reference
from octavo.folders.parts import Part
from octavo.folders.samples import StoredFeeds
from octavo.folders.tasks import Task
from octavo.folders.variants import BNB4, TABLES, TABLES_WAY, Variant
from octavo.model.files import io
from octavo.model.files.io import ModelSource
from octavo.model.runtime.verification import verify
from octavo.result import Result

MAX_SHARE = 0.97  # of the float bytes; a variant that is larger has quantized next to nothing
_READS_DATA = ("float_type", "recipe")  # settings that gain by data, beside weights of few bits


@dataclass(frozen=True)
class Trial:
    """A variant of a part, as it came out."""

    part: Part
    variant: Variant
    file: Path | None = None  # None: it was not written
    bytes: int = 0
    figures: tuple[Figure, ...] = ()
    speed: Ratio | None = None  # as a multiple of float's
    memory_bytes: int | None = None
    load_seconds: float | None = None
    way: Mapping[str, Any] | None = None
    reason: str = ""  # why it was not written

    @property
    def holds(self) -> bool:
        """Whether the variant was written."""
        return not self.reason


@dataclass(frozen=True)
class VariantMaker:
    """What variants of one part are made from and judged by."""

    part: Part
    calibration: StoredFeeds | None  # None: nothing may be calibrated, as inputs are made up
    reference: Reference
    threads: int | None
    seconds: float  # how long a variant and float are timed; 0: not at all
    task: Task | None = None  # what the folder is for, if it can be measured and depends on the part

    def make(self, variant: Variant, path: Path) -> Trial:
        """Make a variant in the first of its ways that holds; on failure nothing stays at the path."""
        if variant.needs_data and self.calibration is None:
            return Trial(self.part, variant, reason="it needs data to calibrate with")
        last = Trial(self.part, variant, reason="Octavo can't make it")
        for way in variant.ways:
            if "bits" in way and self.calibration is None:
                continue
            last = self._try(variant, way, path)
            if last.holds:
                return self.timed(last)
            for file in _files_of(path):
                file.unlink(missing_ok=True)
            if not last.figures:  # it does not load or run, or gains nothing: other ways won't help
                break
        return last

    def _try(self, variant: Variant, way: Mapping[str, Any], path: Path) -> Trial:
        try:
            written = self._write(way, path)
        except OctavoError as error:
            return Trial(self.part, variant, reason=str(error))
        size = sum(file.stat().st_size for file in written)
        if size > MAX_SHARE * self.part.bytes:
            share = size / self.part.bytes
            return Trial(
                self.part, variant, bytes=size, reason=f"it would be {share:.2f} × the size of float"
            )
        return self.judged(Trial(self.part, variant, path, size, way=dict(way)))

    def judged(self, made: Trial) -> Trial:
        """A model that was written, with how close it is to float, and the reason where it does not hold."""
        if made.file is None:
            return made
        try:
            figures = self._figures(made.variant, made.file)
        except OctavoError as error:
            return replace(made, file=None, way=None, reason=str(error))
        missed = [figure for figure in figures if not figure.holds(made.variant.floor)]
        reason = f"{missed[0]}, and {missed[0].limit(made.variant.floor)} is required" if missed else ""
        return replace(made, figures=figures, reason=reason)

    def _figures(self, variant: Variant, path: Path) -> tuple[Figure, ...]:
        """How close a model is to float, and what the task loses where it is close enough."""
        verify(path, feeds=self.reference.feeds[0], threads=self.threads)
        figures = self.reference.figures(path)
        if self.task is not None and all(figure.holds(variant.floor) for figure in figures):
            figures = (*figures, self.task.figure({self.part.name: path}))
        return figures

    def remade(self, trial: Trial, model: ir.Model) -> Trial:
        """A trial with another model in the place of its own, if that holds; else as it was."""
        if trial.file is None:
            return trial
        staged = trial.file.with_name(f".{trial.file.name}")
        try:
            io.save(model, staged, external_data=False)
            figures = self._figures(trial.variant, staged)
        except OctavoError:
            figures = ()
        if not figures or not all(figure.holds(trial.variant.floor) for figure in figures):
            staged.unlink(missing_ok=True)
            return trial
        staged.replace(trial.file)
        return self.timed(replace(trial, figures=figures, bytes=trial.file.stat().st_size))

    def _write(self, way: Mapping[str, Any], path: Path) -> list[Path]:
        beside = f"{path.name}_data"  # as transformers.js expects it
        if way == BNB4:
            return io.save(with_nf4_weights(io.load(self.part.path)), path, location=beside)
        few_bits = str(way.get("weights", "")).endswith(("4", "2"))
        data = self.calibration if few_bits or any(name in way for name in _READS_DATA) else None
        made = self._quantized(self._with_tables() if TABLES in way else self.part.path, data, way)
        return io.save(made.model, path, location=beside)

    def _with_tables(self) -> ModelSource:
        """The part with its tables of words in 8 bits, where they are large enough to gain by it."""
        try:
            return self._quantized(self.part.path, None, TABLES_WAY).model
        except ModelError:
            return self.part.path

    def _quantized(self, source: ModelSource, data: Any, way: Mapping[str, Any]) -> Result:
        keywords = {name: value for name, value in way.items() if name != TABLES}
        return api.quantize(source, data, effort="plain", threads=self.threads, verify=False, **keywords)

    def timed(self, trial: Trial) -> Trial:
        """The trial with its speed, memory and load time."""
        if trial.file is None or not self.seconds:
            return trial
        feed = self.reference.timed_feed
        found = bench(
            self.part.path,
            trial.file,
            [feed],
            threads=self.threads,
            seconds=self.seconds,
            clock="cpu",
            profile=False,
            memory=False,
        )
        taken = footprint(trial.file, feed, self.part.inputs, self.threads)
        return replace(
            trial,
            speed=found.ratio,
            memory_bytes=taken.memory_bytes,
            load_seconds=taken.load_seconds,
        )


def _files_of(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f"{path.name}_data")
