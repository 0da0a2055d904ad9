"""The result of quantizing a folder: a row for each variant of each part, whether it was written or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.folders.making import Trial
from octavo.folders.parts import Part
from octavo.reporting.folder_tables import folder_table

SCHEMA = 1  # the version of what to_dict() gives


@dataclass(frozen=True)
class FolderResult:
    """The variants of a model folder; prints as a table."""

    source: Path
    output: Path
    parts: tuple[Part, ...]
    trials: tuple[Trial, ...]
    chosen: Mapping[str, str]  # with ``auto``: the variant of each part
    data: str
    copied: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: Sequence[str] = ()

    @property
    def written(self) -> tuple[Trial, ...]:
        """The variants that were written."""
        return tuple(trial for trial in self.trials if trial.holds)

    @property
    def refused(self) -> tuple[Trial, ...]:
        """The variants that do not hold, with their reasons."""
        return tuple(trial for trial in self.trials if not trial.holds)

    def nearest(self, refused: Trial) -> Trial | None:
        """The variant of the same part that holds and is closest in size to one that does not."""
        others = [one for one in self.written if one.part is refused.part and not one.variant.is_float]
        return min(others, key=lambda one: abs(one.bytes - refused.bytes), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for machines; docs/folders.md says what each key holds."""
        return {
            "schema": SCHEMA,
            "kind": "folder",
            "source": str(self.source),
            "output": str(self.output),
            "data": self.data,
            "parts": [
                {"name": part.name, "role": part.role.value, "bytes": part.bytes} for part in self.parts
            ],
            "variants": [self._row(trial) for trial in self.trials],
            "chosen": dict(self.chosen),
            "copied": list(self.copied),
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }

    def _row(self, trial: Trial) -> dict[str, Any]:
        was_tried = trial.part.name in self.chosen  # by ``auto``: the one that was chosen is named
        nearest = None if trial.holds or was_tried else self.nearest(trial)
        file = trial.file if trial.holds else None
        return {
            "part": trial.part.name,
            "variant": trial.variant.name,
            "file": file.as_posix() if file is not None else None,
            "bytes": trial.bytes,
            "float_bytes": trial.part.bytes,
            "fidelity": str(trial.figures[0]) if trial.figures else None,
            "task": next((str(figure) for figure in trial.figures if figure.is_of_task), None),
            "figures": [asdict(figure) for figure in trial.figures],
            "speed": asdict(trial.speed) if trial.speed is not None else None,
            "memory_bytes": trial.memory_bytes,
            "load_seconds": trial.load_seconds,
            "settings": dict(trial.way) if trial.way is not None else None,
            "refused": trial.reason or None,
            "nearest": nearest.variant.name if nearest is not None else None,
        }

    def __str__(self) -> str:
        return folder_table(self.to_dict())

    def __repr__(self) -> str:
        return f"<FolderResult: {len(self.written)} variants in {self.output}, {len(self.refused)} refused>"

    def _repr_html_(self) -> str:
        from octavo.reporting.notebook import table_html  # loaded where a page is shown

        return table_html(str(self))
