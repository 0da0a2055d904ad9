"""What each part of a folder is calibrated with, compared on, and judged by."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.folders.discovery import ModelFolder
from octavo.folders.fidelity import LOGITS, Reader, Reference
from octavo.folders.generation import Pipeline
from octavo.folders.making import VariantMaker
from octavo.folders.parts import STATES, Part, Role
from octavo.folders.samples import FolderData, StoredFeeds, held_back
from octavo.folders.tasks import Task


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
