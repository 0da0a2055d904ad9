"""What a variant costs in the folder's own task: words of a transcript, or classes, beside float's.

=========  =============================================================================================
``words``  of models of speech: the fewest words to insert, delete and replace that turn the transcripts
           into the right ones, as a share of their words (word error rate). Clips without a label are
           compared with what the float model hears
``right``  of classifiers whose samples have labels: the share of samples with the right class first
=========  =============================================================================================

A part is judged in its place among the float ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from octavo.data.readers.text_files import decode, open_tokenizer
from octavo.errors import DataError, ModelError
from octavo.evaluation.label_files import class_number
from octavo.evaluation.task_metrics import top_k
from octavo.evaluation.tasks.classification import score_table
from octavo.folders.discovery import ModelFolder, read_json
from octavo.folders.fidelity import LOGITS, Figure
from octavo.folders.generation import MissingInputError, Pipeline, encodes, plain_input
from octavo.folders.parts import SOUND, Part, Role
from octavo.folders.samples import Array, Item
from octavo.model.runtime.session import Session

MOST_TOKENS = 224  # of a transcript: half of what Whisper writes at most, and more than half a minute has
_MOST_WORDS = 10 * MOST_TOKENS  # of the label of a piece; comparing takes as long as both texts multiplied
# Chinese and Japanese are written without spaces: their signs count as words.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+(?:['’-][^\W]+)*")
_DELIMITER = "|"  # between words in the vocabularies of wav2vec 2.0


class Task(Protocol):
    """A measure of models of a folder, by the files that stand in the places of its parts."""

    def judges(self, part: Part) -> bool:
        """Whether the answers depend on a part."""
        ...

    def figure(self, files: Mapping[str, Path]) -> Figure:
        """The figure of the folder with other files for some parts, by their names."""
        ...


def task_of(pipeline: Pipeline, items: Sequence[Item]) -> Task | None:
    """Return the measure that fits a folder and its samples; None where there is none."""
    if not items or pipeline.missing:
        return None
    folder = pipeline.folder
    if any(set(part.input_names) & set(SOUND) for part in folder.parts):
        return Transcripts.of(pipeline, items)
    labelled = [item for item in items if item.label is not None]
    return Classes.of(pipeline, labelled) if labelled else None


# ---- Transcripts


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return _WORD.findall(text.lower())


def _said(item: Item) -> list[str]:
    """The words that a clip is labelled with."""
    found = words(str(item.label))
    if len(found) > _MOST_WORDS * len(item.pieces):
        raise DataError(
            f"A clip is labelled with {len(found)} words ({' '.join(found[:8])[:80]} …), more than anyone"
            " says in it; give its own transcript."
        )
    return found


def word_errors(found: Sequence[str], expected: Sequence[str]) -> int:
    """The fewest words to insert, delete and replace that turn one text into the other."""
    row = list(range(len(expected) + 1))
    for i, word in enumerate(found, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(expected, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return row[-1]


@dataclass(frozen=True)
class Transcripts:
    """What a model of speech hears, and what was said: by label, or by the float model."""

    pipeline: Pipeline
    items: Sequence[Item]
    text: Any  # a function of token ids
    states: list[list[dict[str, Array]]]  # what the float encoders give, by clip and piece
    expected: list[list[str]] = field(default_factory=list)
    float_errors: int | None = None  # None: float's own transcripts are what is expected

    @classmethod
    def of(cls, pipeline: Pipeline, items: Sequence[Item]) -> Transcripts | None:
        """Transcribe in float; None where there is no tokenizer, or nothing was said."""
        text = _text_of(pipeline.folder)
        if text is None:
            return None
        labelled = [item for item in items if item.label is not None]
        chosen = labelled or items
        states = [[pipeline.encoded(piece) for piece in item.pieces] for item in chosen]
        made = cls(pipeline, chosen, text, states)
        heard = made.heard({})
        if labelled:
            expected = [_said(item) for item in labelled]
            errors = sum(map(word_errors, heard, expected))
            made = replace(made, expected=expected, float_errors=errors)
        else:
            made = replace(made, expected=heard)
        return made if any(made.expected) else None

    def judges(self, part: Part) -> bool:
        """Whether the transcripts depend on a part."""
        return bool(set(part.input_names) & set(SOUND)) or part.role.generates

    def heard(self, files: Mapping[str, Path]) -> list[list[str]]:
        """The words of each clip."""
        changed = any(encodes(part) and part.name in files for part in self.pipeline.folder.parts)
        with self.pipeline.with_files(files) as pipeline:
            return [
                words(" ".join(self.text(_tokens(pipeline, states)) for states in pieces))
                for pieces in (self._encoded(pipeline) if changed else self.states)
            ]

    def _encoded(self, pipeline: Pipeline) -> Iterator[list[dict[str, Array]]]:
        for item in self.items:
            yield [pipeline.encoded(piece) for piece in item.pieces]

    def figure(self, files: Mapping[str, Path]) -> Figure:
        """The word error rate."""
        count = sum(map(len, self.expected))
        errors = sum(map(word_errors, self.heard(files), self.expected))
        float_value = None if self.float_errors is None else self.float_errors / count
        return Figure("words", errors / count, float_value=float_value, count=count)


def _tokens(pipeline: Pipeline, encoded: Mapping[str, Array]) -> list[int]:
    """What is heard in a piece: generated, or the likeliest sign of each frame without repetitions."""
    if any(part.role.generates for part in pipeline.folder.parts):
        return pipeline.answer(encoded, MOST_TOKENS)
    logits = encoded.get(LOGITS)
    if logits is None or logits.ndim != 3:
        raise MissingInputError("it gives no logits by frame")
    best = logits[0].argmax(axis=-1)
    kept = best[np.append(True, best[1:] != best[:-1])]
    blank = pipeline.folder.token("pad_token_id") or 0
    return [int(token) for token in kept if token != blank]


def _text_of(folder: ModelFolder) -> Any:
    """The function that turns tokens into text; None where the folder has no vocabulary."""
    if folder.tokenizer is not None:
        loaded, path = open_tokenizer(folder.tokenizer), folder.tokenizer
        return lambda ids: decode(loaded, ids, path)
    plain = folder.root / "vocab.json"
    if not plain.is_file():
        return None
    signs = {number: sign for sign, number in read_json(plain).items() if isinstance(number, int)}
    return lambda ids: "".join(signs.get(one, "") for one in ids).replace(_DELIMITER, " ")


# ---- Classes


@dataclass(frozen=True)
class Classes:
    """The share of labelled samples whose class a part of the folder ranks first."""

    part: Part
    feeds: list[dict[str, Array]]
    numbers: Array
    threads: int | None
    float_value: float | None = None

    @classmethod
    def of(cls, pipeline: Pipeline, items: Sequence[Item]) -> Classes | None:
        """Rank in float; None where no part of the folder gives scores of classes."""
        names = _class_names(pipeline.folder)
        part = next((one for one in pipeline.folder.parts if not one.role.generates), None)
        if part is None or part.role is Role.EMBEDDING or not (LOGITS in part.outputs or names):
            return None
        try:
            feeds = [{spec.name: plain_input(spec, item.pieces[0]) for spec in part.inputs} for item in items]
            numbers = [class_number(one.label, names, f"Sample {i}") for i, one in enumerate(items)]
            made = cls(part, feeds, np.array(numbers), pipeline.threads)
            return replace(made, float_value=made.figure({}).value)
        except (MissingInputError, ModelError):
            return None

    def judges(self, part: Part) -> bool:
        """Whether it is the part that gives the scores."""
        return part is self.part

    def figure(self, files: Mapping[str, Path]) -> Figure:
        """The share of right answers."""
        session = Session.open(files.get(self.part.name, self.part.path), threads=self.threads)
        name = LOGITS if LOGITS in self.part.outputs else None
        rows = [score_table(session.run(feed), name) for feed in self.feeds]
        scores = np.concatenate(rows)
        if len(scores) != len(self.numbers) or self.numbers.max() >= scores.shape[1]:
            raise DataError(
                f"The labels go up to {self.numbers.max()} for {len(self.numbers)} samples, and"
                f" {self.part.name} gives scores of shape {list(scores.shape)}; give labels that fit."
            )
        right = float(top_k(scores, self.numbers, 1).mean())
        return Figure("right", right, float_value=self.float_value, count=len(scores))


def _class_names(folder: ModelFolder) -> list[str] | None:
    """The names of classes in the order of their numbers, as ``id2label`` of the configuration has them."""
    found = folder.config.get("id2label")
    if not isinstance(found, dict) or not all(str(key).isdecimal() and len(str(key)) < 7 for key in found):
        return None
    return [str(found[key]) for key in sorted(found, key=int)]
