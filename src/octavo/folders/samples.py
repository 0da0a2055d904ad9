"""What data means for a folder: texts by its tokenizer, images by its preprocessing, or arrays by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from octavo.core.scratch_arrays import load_arrays, save_arrays
from octavo.data.audio.features import features_of
from octavo.data.audio.wav import SUFFIXES as SOUND_SUFFIXES
from octavo.data.audio.wav import read_wav, wavs_below
from octavo.data.images.image_decoding import SUFFIXES as IMAGE_SUFFIXES
from octavo.data.images.preprocessing import standardized
from octavo.data.readers import source_of
from octavo.data.readers.array_samples import Arrays, cuts
from octavo.data.readers.image_files import images, images_below
from octavo.data.readers.numpy_files import archive_arrays, names_within
from octavo.data.readers.text_files import SUFFIXES as TEXT_SUFFIXES
from octavo.data.readers.text_files import Text, encode, open_tokenizer, rows, tokenizer_file
from octavo.data.source import FoundIn, Source, Specs
from octavo.errors import DataError, ModelError, RecipeError, closest
from octavo.evaluation.labelled_samples import LABEL_KEYS
from octavo.folders.chat import ChatTemplate
from octavo.folders.discovery import MAX_TOKENS, ModelFolder
from octavo.folders.labels import Labels, labels_of
from octavo.folders.parts import IDS, PIXELS, SOUND, Part
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.samples import sample_inputs

Array = npt.NDArray[Any]
Sample = dict[str, Array]
MAX_SAMPLES = 24  # run through the pipeline, where no number is given
MAX_LABELLED, MAX_CLIPS = 64, 16  # labelled samples, or clips, beyond these: the task is judged on them too
HELD_BACK = 3  # every so many-th part of the samples is for comparing, not for calibration
MAX_COMPARED = 8  # samples that variants are compared on
MADE_UP = 6  # samples, where there is no data
MAX_LENGTH = 128  # tokens of a text
_FEWEST_TOKENS = 2  # that made-up texts are drawn from, where neither configuration nor model says how many


@dataclass(frozen=True)
class Item:
    """What a label belongs to: a text, an image, a clip with a sample for each piece of it."""

    pieces: tuple[Sample, ...]
    label: Any = None


@dataclass(frozen=True)
class FolderData:
    """Samples for the first parts of a pipeline, and what its task is judged on: none of them calibrates."""

    samples: tuple[Sample, ...]
    made_up: bool  # there was no data
    described: str
    judged: tuple[Item, ...] = ()


def folder_data(
    folder: ModelFolder,
    data: Any,
    *,
    samples: int | None = None,
    tokenizer: str | Path | None = None,
    max_length: int | None = None,
    column: str | None = None,
    labels: Any = None,
) -> FolderData:
    """Return the samples that a pipeline starts with."""
    if data is None:
        if labels is not None:
            raise DataError("There are labels and no data; give the samples that they belong to.")
        return FolderData(tuple(_made_up(folder)), True, "made-up inputs")
    limit = samples or MAX_SAMPLES
    reader = _Reader(folder, tokenizer, max_length, column)
    if isinstance(data, Mapping):
        if labels is not None:
            raise DataError("Labels belong to samples of all parts; give the data in one place.")
        rows = [
            list(itertools.islice(reader.samples(one, find_part(folder, name)), limit))
            for name, one in data.items()
        ]
        found = [
            {name: value for sample in row for name, value in sample.items()}
            for row in zip(*rows, strict=False)
        ]
        items = [Item((sample,)) for sample in found]
    else:
        truth = labels_of(data, labels, folder.parts)
        is_sound = any(set(part.input_names) & set(SOUND) for part in folder.parts)
        further = MAX_CLIPS if is_sound else MAX_LABELLED if truth else 0
        items = _taken(reader.items(data, truth), limit, further)
        found = [piece for item in items for piece in item.pieces][:limit]
    if not found:
        raise DataError("The data holds no sample; give at least one.")
    where = f" of {data}" if isinstance(data, str | Path) else ""
    described = f"{len(found)} sample{'s' * (len(found) > 1)}{where}"
    return FolderData(tuple(found), False, described, _judged(items, len(found)))


def held_back(count: int) -> int:
    """How many of so many samples are for comparing."""
    return min(max(1, count // HELD_BACK), MAX_COMPARED)


def _taken(items: Iterator[Item], limit: int, further: int) -> list[Item]:
    """The items that the first ``limit`` samples belong to, and some more."""
    found: list[Item] = []
    count = 0
    for item in items:
        if count >= limit and not further:
            break
        further -= count >= limit
        found.append(item)
        count += len(item.pieces)
    return found


def _judged(items: Sequence[Item], count: int) -> tuple[Item, ...]:
    """The items of which no piece is among the samples to calibrate with; all where there is only one."""
    first, place, found = count - held_back(count), 0, []
    for item in items:
        if place >= first:
            found.append(item)
        place += len(item.pieces)
    return tuple(found or items)


@dataclass(frozen=True)
class _Reader:
    """Reads data of any kind, for the first part of a pipeline or for the one that is named."""

    folder: ModelFolder
    tokenizer: str | Path | None
    max_length: int | None
    column: str | None

    def items(self, data: Any, labels: Labels) -> Iterator[Item]:
        """Give the samples with their labels; clips with all their pieces."""
        path = Path(data) if isinstance(data, str | Path) else None
        sounds = _sounds(path) if path is not None and path.suffix.lower() not in TEXT_SUFFIXES else []
        if path is not None and sounds:
            root = path if path.is_dir() else path.parent
            for number, sound in enumerate(sounds):
                label = labels.of(number, sound.relative_to(root).as_posix())
                yield Item(tuple(_heard(self.folder, [sound])), label)
            return
        for number, sample in enumerate(self.samples(data)):
            name = Path(getattr(sample, "where", "")).name
            yield Item((sample,), labels.of(number, name))

    def samples(self, data: Any, part: Part | None = None) -> Iterator[Sample]:
        """Give the samples of texts, sound, images or arrays."""
        path = Path(data) if isinstance(data, str | Path) else None
        if isinstance(data, Text):
            yield from self._texts(data.texts, data.tokenizer, data.max_length, data.column)
        elif path is not None and path.suffix.lower() in TEXT_SUFFIXES:
            place = Path(self.tokenizer) if self.tokenizer is not None else self.folder.tokenizer
            if place is None:
                raise DataError(
                    f"{path} holds texts, and {self.folder.root} has no tokenizer.json; give a tokenizer, or"
                    " arrays."
                )
            yield from self._texts(path, place, self.max_length, self.column)
        elif path is not None and (sounds := _sounds(path)):
            yield from _heard(self.folder, sounds)
        else:
            yield from self._arrays(data, path, part)

    def _texts(
        self, texts: Any, tokenizer: Path, max_length: int | None, column: str | None
    ) -> Iterator[Sample]:
        file = tokenizer_file(tokenizer)
        loaded = open_tokenizer(file)
        loaded.no_padding()
        loaded.enable_truncation(max_length or MAX_LENGTH)
        with ChatTemplate(self.folder) as chat:
            for place, row in rows(texts, column):
                is_chat = isinstance(row, list)
                text = chat.text(row, place) if is_chat else row
                if not isinstance(text, str):
                    raise DataError(
                        f"{place} is of type {type(text).__name__}; it must be a text or a conversation."
                    )
                if not text.strip():
                    continue
                (found,) = encode(loaded, [text], file, special=not is_chat)  # a template writes them itself
                if found.ids:
                    yield {
                        "input_ids": np.array([found.ids], np.int64),
                        "attention_mask": np.array([found.attention_mask], np.int64),
                        "token_type_ids": np.array([found.type_ids], np.int64),
                    }

    def _arrays(self, data: Any, path: Path | None, part: Part | None) -> Iterator[Sample]:
        """Samples of one part, whatever their reader."""
        parts = self.folder.parts
        is_image = path is not None and (
            path.suffix.lower() in IMAGE_SUFFIXES or (path.is_dir() and bool(images_below(path)))
        )
        if is_image:
            part = part or next((one for one in parts if set(one.input_names) & set(PIXELS)), None)
            data = _images(self.folder, path)
        first = part or next((one for one in parts if not one.past), parts[0])
        names = set() if part is not None else _names_in(data, path)
        several = {spec.name: spec for one in parts for spec in one.inputs if spec.name in names}
        inputs = tuple(several.values()) if several.keys() == names != set() else first.inputs
        for sample in _source(data, path, inputs).portion():
            yield FoundIn(sample, getattr(sample, "where", ""))


def _source(data: Any, path: Path | None, inputs: Specs) -> Source:
    """The samples of any kind of data; an archive's labels are none of the inputs."""
    names = {spec.name for spec in inputs}
    if path is not None and _stored_names(path) & set(LABEL_KEYS) - names:
        arrays = {name: array for name, array in archive_arrays(path).items() if name not in LABEL_KEYS}
        return Arrays(
            arrays, cuts({name: one.shape for name, one in arrays.items()}, inputs, str(path)), str(path)
        )
    return source_of(data, inputs)


def _names_in(data: Any, path: Path | None) -> set[str]:
    """The names of the inputs in a file or in a list of samples: they may be those of several parts."""
    if isinstance(data, Sequence) and data and isinstance(data[0], Mapping):
        return set(data[0])
    return _stored_names(path) - set(LABEL_KEYS) if path is not None else set()


def _stored_names(path: Path) -> set[str]:
    return set(names_within(path)) if path.suffix.lower() == ".npz" and path.is_file() else set()


def _sounds(path: Path) -> list[Path]:
    """The WAV files that a path names, or that a folder holds."""
    if path.is_dir():
        return wavs_below(path)
    return [path] if path.suffix.lower() in SOUND_SUFFIXES else []


def _heard(folder: ModelFolder, sounds: list[Path]) -> Iterator[Sample]:
    """Clips as ``preprocessor_config.json`` says, a sample for each piece that the model hears at once."""
    name = next((one for part in folder.parts for one in part.input_names if one in SOUND), None)
    if name is None:
        raise DataError(
            f"{sounds[0]} holds sound, and no part of {folder.root} has an input for it ({', '.join(SOUND)});"
            " give the inputs of the model as arrays (.npz)."
        )
    features = features_of(folder.config)
    for sound in sounds:
        for array in features.inputs(read_wav(sound)):
            yield {name: array}


def _images(folder: ModelFolder, path: Any) -> Any:
    """Return images as ``preprocessor_config.json`` says."""
    mean, std = _numbers(folder, "image_mean"), _numbers(folder, "image_std")
    return images(path, preprocess=standardized(None, mean, std)) if mean and std else images(path)


def _numbers(folder: ModelFolder, name: str) -> tuple[float, ...] | None:
    """A list of numbers in the folder's configuration; None where there is none."""
    value = folder.config.get(name)
    if value is None:
        return None
    try:
        found = tuple(map(float, value))
    except (TypeError, ValueError, OverflowError):
        found = (math.nan,)
    if not all(map(math.isfinite, found)):
        raise ModelError(
            f"{folder.root}: the configuration has the {name} {str(value)[:80]}; correct it to numbers."
        )
    return found


def find_part(folder: ModelFolder, name: str) -> Part:
    """Return the part of this name, or of this file name."""
    for part in folder.parts:
        if name in (part.name, part.stem):
            return part
    known = [part.name for part in folder.parts]
    raise RecipeError(f"{folder.root} has no part {name!r}{closest(name, known) or '.'} It has {known}.")


def _made_up(folder: ModelFolder) -> Iterator[Sample]:
    """Inputs that fit, for a folder that comes without data: random tokens, values near zero."""
    vocabulary = _vocabulary(folder)
    for seed in range(MADE_UP):
        rng = np.random.default_rng(seed)
        sample: Sample = {}
        for part in folder.parts:
            own = [spec for spec in part.inputs if spec not in part.past and spec.name not in sample]
            if not part.role.generates:
                sample.update(sample_inputs(own, seed=seed))
        for name in IDS:
            if name in sample:
                sample[name] = rng.integers(0, vocabulary, sample[name].shape).astype(sample[name].dtype)
        if not sample:
            sample = {"input_ids": rng.integers(0, vocabulary, (1, 1)).astype(np.int64)}
        yield sample


def _vocabulary(folder: ModelFolder) -> int:
    """How many tokens there are: rows of the table that ids are looked up in, or as configured."""
    for part in folder.parts:
        model = io.load(part.path)
        for value in model.graph.inputs:
            for node in query.readers(value) if value.name in IDS else ():
                table = query.constant(node.inputs[0])
                if query.is_op(node, "Gather") and table is not None:
                    return max(int(table.shape.numpy()[0]), _FEWEST_TOKENS)
    words = folder.config.get("vocab_size")
    return words if isinstance(words, int) and 1 < words < MAX_TOKENS else _FEWEST_TOKENS


# ---- The samples that the parts of a folder are calibrated and compared on, kept on disk: caches are large


class StoredFeeds(Sequence[Sample]):
    """Feeds of one part in the order in which they were recorded; each is read when it is needed."""

    def __init__(self, folder: Path, files: Sequence[Path] = (), names: Sequence[str] = ()) -> None:
        self._folder = folder
        self._files = list(files)
        self._names = list(names)

    def append(self, feed: Mapping[str, Array]) -> None:
        """Keep a feed."""
        self._folder.mkdir(exist_ok=True)
        self._names = self._names or list(feed)
        path = self._folder / f"{len(self._files)}.npz"
        save_arrays(path, {name: feed[name] for name in self._names})
        self._files.append(path)

    def part(self, first: int, stop: int | None = None) -> StoredFeeds:
        """Return some of the feeds."""
        return StoredFeeds(self._folder, self._files[first:stop], self._names)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self._read(path) for path in self._files[index]]
        return self._read(self._files[index])

    def __iter__(self) -> Iterator[Sample]:
        return map(self._read, self._files)

    def _read(self, path: Path) -> Sample:
        return load_arrays(path)
