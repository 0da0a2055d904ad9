"""The merged decoder that transformers.js loads, made of the two that a folder has in its place.

Exporters write ``decoder_model`` and ``decoder_with_past_model``, transformers.js loads
``decoder_model_merged``. Each variant of it is made of the same variants of the two, and is checked, compared
with float and timed as any other part: on their feeds, as the merged one reads them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from octavo.data.decoder import empty_past
from octavo.errors import ModelError
from octavo.folders import beside
from octavo.folders.discovery import ModelFolder
from octavo.folders.fidelity import Reference
from octavo.folders.makers import Makers
from octavo.folders.making import Trial, VariantMaker
from octavo.folders.parts import Part, Role, read_part
from octavo.folders.samples import Sample, held_back
from octavo.model.files import io
from octavo.model.graph.merging import CACHE_BRANCH, merge_decoders

_NAME = "_merged"  # after the name of the decoder without a cache


def needs_merged(folder: ModelFolder) -> bool:
    """Whether transformers.js would look for a merged decoder that the folder does not have."""
    roles = [part.role for part in folder.parts]
    is_pair = roles.count(Role.DECODER) == roles.count(Role.DECODER_WITH_PAST) == 1
    reads = any(part.reads_encoder for part in folder.parts if part.role is Role.DECODER)
    return folder.is_for_web and is_pair and reads and Role.MERGED_DECODER not in roles


class MergedDecoder:
    """Makes the variants of a merged decoder."""

    def __init__(self, first: Part, later: Part, makers: Makers) -> None:
        root = makers.pipeline.store / "merged"
        path = root / Path(first.name).with_name(f"{first.base}{_NAME}.onnx")
        path.parent.mkdir(parents=True)
        self._merge(first.path, later.path, path)
        self.part = read_part(path, root)
        feeds = self._feeds(first, later, makers)
        self._maker = VariantMaker(
            self.part, None, Reference(self.part, feeds, makers.threads), makers.threads, makers.seconds
        )

    def trial(self, first: Trial, later: Trial) -> Trial:
        """The merged decoder of two variants, beside the first of them."""
        variant, bare = first.variant, Trial(self.part, first.variant)
        if first.file is None or later.file is None:
            return replace(bare, reason="one of the decoders is missing")
        path = first.file.with_name(f"{self.part.stem}{variant.suffix}.onnx")
        try:
            self._merge(first.file, later.file, path)
        except ModelError as error:
            return replace(bare, reason=f"the decoders can't be merged: {error}")
        made = self._maker.judged(replace(bare, file=path, bytes=beside.size_of(path), way=first.way))
        if not made.holds:
            beside.remove(path)
        return self._maker.timed(made) if made.holds else made

    @property
    def timed_feed(self) -> Sample:
        """What the part is timed with."""
        return self._maker.reference.timed_feed

    @staticmethod
    def _merge(first: Path, later: Path, path: Path) -> None:
        made = merge_decoders(io.load(first), io.load(later))
        io.save(made, path, location=f"{path.name}_data")

    def _feeds(self, first: Part, later: Part, makers: Makers) -> list[Sample]:
        """The feeds of both decoders that variants are compared on, with all inputs of the merged one."""
        ends = [makers.pipeline.ends[part.name] for part in (first, later)]
        count = len(ends[0])
        found: list[Sample] = []
        for sample in range(count - held_back(count), count):
            rows = [
                makers.pipeline.feeds[part.name].part(ended[sample - 1] if sample else 0, ended[sample])
                for part, ended in zip((first, later), ends, strict=True)
            ]
            known = rows[0][0] if len(rows[0]) else {}
            found += [self._whole(feed, {}, cached=False) for feed in rows[0]]
            found += [self._whole(feed, known, cached=True) for feed in rows[1]]
        return found

    def _whole(self, feed: Sample, known: Sample, *, cached: bool) -> Sample:
        """A feed with what only the other one of the two decoders reads."""
        batch = len(next(iter(feed.values())))
        whole: Sample = {CACHE_BRANCH: np.array([cached])}
        for spec in self.part.inputs:
            if (given := feed.get(spec.name, known.get(spec.name))) is not None:
                whole[spec.name] = given
            elif spec in self.part.past:
                whole[spec.name] = empty_past(spec, batch)
        return whole
