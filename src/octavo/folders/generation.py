"""Running a pipeline part by part in float, and keeping what each part was fed.

Arrays are known by name: a sample starts with what data gives (``input_ids``, ``pixel_values``), each part
reads its inputs from there and adds its outputs. A decoder is fed by generating: its prompt with no cache,
then token after token with the cache that its own steps have filled. No cache is ever made up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.data.decoder import empty_past, is_past
from octavo.errors import ModelError
from octavo.folders.discovery import ModelFolder
from octavo.folders.parts import EMBEDS, IDS, STATES, Part, Role
from octavo.folders.samples import Array, Sample, StoredFeeds
from octavo.model.graph.merging import CACHE_BRANCH
from octavo.model.runtime.session import InputSpec, Session

NEW_TOKENS = 8  # generated after each prompt
ANSWER_TOKENS = 48  # at most, where an encoder is read: a transcript or a translation, up to its end
RECORDED_STEPS = (1, 4, 8, 24)  # of them, those that are kept: the cache grows by a token a step
PROMPT_TOKENS = 24  # sampled from the model itself where there is no text


class MissingInputError(ModelError):
    """A part has an input that nothing fills."""


@dataclass
class Pipeline:
    """The float parts of a folder, run in order; sessions stay open until the last sample."""

    folder: ModelFolder
    store: Path
    threads: int | None = None
    feeds: dict[str, StoredFeeds] = field(default_factory=dict)
    ends: dict[str, list[int]] = field(default_factory=dict)  # how many feeds there are after each sample
    missing: dict[str, str] = field(default_factory=dict)  # why a part could not be fed
    files: Mapping[str, Path] = field(default_factory=dict)  # that stand in the places of parts, by name
    _sessions: dict[Path, Session] = field(default_factory=dict)

    def run(self, samples: Iterable[Mapping[str, Array]], *, sampled: bool = False) -> None:
        """Run all samples; with ``sampled`` the prompts of decoders are sampled from the model itself."""
        for index, part in enumerate(self.folder.parts):
            self.feeds[part.name] = StoredFeeds(self.store / str(index))
            self.ends[part.name] = []
        for number, sample in enumerate(samples):
            known = dict(sample)
            for part in self.folder.parts:
                if encodes(part):
                    self._encode(part, known)
            self._decode(known, np.random.default_rng(number) if sampled else None)
            for name, feeds in self.feeds.items():
                self.ends[name].append(len(feeds))
        self._sessions.clear()

    @contextlib.contextmanager
    def with_files(self, files: Mapping[str, Path]) -> Iterator[Pipeline]:
        """The same pipeline with other models for some parts; the sessions of float ones stay open."""
        changed = replace(self, files=files, _sessions=dict(self._sessions))
        yield changed
        kept = {part.path for part in self.folder.parts}
        self._sessions.update({path: one for path, one in changed._sessions.items() if path in kept})

    def encoded(self, sample: Mapping[str, Array]) -> dict[str, Array]:
        """A sample with the outputs of all encoders."""
        known = dict(sample)
        for part in filter(encodes, self.folder.parts):
            feed = {spec.name: plain_input(spec, known) for spec in part.inputs}
            found = self._session(part).run(feed)
            known.update({name: value for name, value in found.items() if name not in known})
        return known

    def answer(self, encoded: Mapping[str, Array], most: int) -> list[int]:
        """The tokens that the decoders write after their prompt, at most so many."""
        generation = self._generation(dict(encoded))
        return [int(ids[0, 0]) for ids in generation.write(most)[1:]]

    def _session(self, part: Part) -> Session:
        path = self.files.get(part.name, part.path)
        if path not in self._sessions:
            self._sessions[path] = Session.open(path, threads=self.threads)
        return self._sessions[path]

    def _encode(self, part: Part, known: dict[str, Array]) -> None:
        try:
            feed = {spec.name: plain_input(spec, known) for spec in part.inputs}
        except MissingInputError as error:
            self.missing.setdefault(part.name, str(error))
            return
        found = self._session(part).run(feed)
        self.feeds[part.name].append(feed)
        known.update({name: value for name, value in found.items() if name not in known})

    def _generation(self, known: dict[str, Array]) -> _Generation:
        decoders = [part for part in self.folder.parts if part.role.generates]
        first = [part for part in decoders if part.role is not Role.DECODER_WITH_PAST] or decoders
        later = [part for part in decoders if part.role is not Role.DECODER]
        return _Generation(self, known, first, later)

    def _decode(self, known: dict[str, Array], rng: np.random.Generator | None) -> None:
        decoders = [part for part in self.folder.parts if part.role.generates]
        if not decoders:
            return
        run = self._generation(known)
        try:
            if rng is not None and not any(part.reads_encoder for part in decoders):
                run.sample_prompt(rng)
            run.record()
        except MissingInputError as error:
            for part in decoders:
                self.missing.setdefault(part.name, str(error))

    def embedded(self, ids: Array, *, keep: bool) -> Array:
        """The embeddings of tokens, where a part of the folder makes them."""
        part = next((one for one in self.folder.parts if one.role is Role.EMBEDDING), None)
        if part is None:
            raise MissingInputError("its decoder reads embeddings, and no part computes them from tokens")
        feed: Sample = {part.inputs[0].name: ids.astype(part.inputs[0].dtype)}
        if keep:
            self.feeds[part.name].append(feed)
        return self._session(part).run(feed)[part.outputs[0]]


def encodes(part: Part) -> bool:
    """Whether a part is run before any token is generated."""
    return not part.role.generates and part.role is not Role.EMBEDDING


@dataclass
class _Generation:
    """One sequence of tokens, and the cache that it has filled."""

    pipeline: Pipeline
    known: dict[str, Array]
    first: list[Part]  # parts that take the prompt
    later: list[Part]  # parts that take a token and a cache
    past: dict[str, Array] = field(default_factory=dict)
    length: int = 0

    def prompt(self) -> Array:
        """The tokens that the decoder starts with."""
        if (given := self.known.get("decoder_input_ids")) is not None:
            return given
        if not any(part.reads_encoder for part in self.first) and "input_ids" in self.known:
            return self.known["input_ids"]
        folder = self.pipeline.folder
        for name in ("decoder_start_token_id", "bos_token_id", "eos_token_id"):
            if (token := folder.token(name)) is not None:
                return np.array([[token, *folder.forced_tokens]], np.int64)
        return np.zeros((1, 1), np.int64)

    def sample_prompt(self, rng: np.random.Generator) -> None:
        """Replace the prompt by tokens drawn from the model's own probabilities."""
        ids = self.prompt()[:, :1]
        found = [ids]
        logits = self._step(self.first, ids, record=False)
        for _ in range(PROMPT_TOKENS - 1):
            shifted = logits[0, -1].astype(np.float64)
            chance = np.exp(shifted - shifted.max())
            ids = np.array([[rng.choice(chance.size, p=chance / chance.sum())]], np.int64)
            found.append(ids)
            if not self.later:
                self.length, whole = 0, np.concatenate(found, axis=1)
                logits = self._step(self.first, whole, record=False)
            else:
                logits = self._step(self.later, ids, record=False)
        self.past, self.length = {}, 0
        self.known["input_ids"] = np.concatenate(found, axis=1)

    def record(self) -> None:
        """Run the prompt and further tokens, each the most likely one, and keep the feeds.

        Of an answer that is read off an encoder the whole text is the last feed, with no cache: it gives
        the probabilities of every token at once.
        """
        is_answer = any(part.reads_encoder for part in self.first)
        most = ANSWER_TOKENS if is_answer else NEW_TOKENS if self.later else 0
        whole = self.write(most, (0, *RECORDED_STEPS))
        if is_answer:
            self.past, self.length = {}, 0
            self._step(self.first, np.concatenate(whole, axis=1), record=True)

    def write(self, most: int, recorded: Collection[int] = ()) -> list[Array]:
        """The prompt and at most so many tokens, up to the end; feeds of the recorded steps are kept."""
        end = self.pipeline.folder.token("eos_token_id")
        whole = [self.prompt()]
        logits = self._step(self.first, whole[0], record=0 in recorded)
        for step in range(1, most + 1):
            token = int(np.argmax(logits[0, -1]))
            if token == end:
                break
            whole.append(np.array([[token]], np.int64))
            if self.later:
                logits = self._step(self.later, whole[-1], record=step in recorded)
            else:
                self.past, self.length = {}, 0
                logits = self._step(self.first, np.concatenate(whole, axis=1), record=False)
        return whole

    def _step(self, parts: list[Part], ids: Array, *, record: bool) -> Array:
        """Sample tokens to all parts that take them; the first one's cache goes on. Returns its logits."""
        answers: dict[str, Array] = {}
        embeds = None
        for part in parts:
            if embeds is None and any(name in EMBEDS for name in part.input_names):
                embeds = self.pipeline.embedded(ids, keep=record)
            feed = {spec.name: self._input(spec, ids, embeds) for spec in part.inputs}
            if record:
                self.pipeline.feeds[part.name].append(feed)
            if part is parts[0] or not answers:
                answers = self.pipeline._session(part).run(feed)
        if "logits" not in answers:
            raise MissingInputError(f"it gives {', '.join(answers)}, but no logits")
        logits = answers["logits"]
        if logits.ndim != 3 or not logits.size or logits.dtype.kind not in "fV":
            raise MissingInputError(
                f"its logits are {logits.dtype} of shape {list(logits.shape)}, not numbers by batch, token "
                "and vocabulary"
            )
        if not np.isfinite(logits[0, -1].astype(np.float32).max()):
            raise MissingInputError("its logits hold NaN or infinity")
        self._keep(answers)
        self.length += ids.shape[1]
        return logits

    def _input(self, spec: InputSpec, ids: Array, embeds: Array | None) -> Array:
        rows, count = ids.shape
        name, length = spec.name, self.length
        if name in IDS:
            return ids.astype(spec.dtype)
        if name in EMBEDS and embeds is not None:
            return embeds.astype(spec.dtype)
        if is_past(spec):
            held = self.past.get(name)
            return held if held is not None else empty_past(spec, rows)
        if name == CACHE_BRANCH:
            return np.full([1] * len(spec.shape), bool(length), np.bool_)
        if name in ("attention_mask", "decoder_attention_mask"):
            return np.ones((rows, length + count), spec.dtype)
        if "position" in name:
            places = np.arange(length, length + count, dtype=spec.dtype)
            return places if len(spec.shape) == 1 else np.broadcast_to(places, (rows, count)).copy()
        if name == "num_logits_to_keep":
            return np.zeros([1] * len(spec.shape), spec.dtype)  # 0 means all
        return plain_input(spec, self.known)

    def _keep(self, answers: Mapping[str, Array]) -> None:
        """Take over the cache that a step returned; an empty one (of an encoder's keys) stays as it was."""
        names = {spec.name for part in self.later for spec in part.past}
        for name, value in answers.items():
            for other in (name.replace("present", "past_key_values", 1), name.replace("present", "past", 1)):
                if name.startswith("present") and other in names and value.size:
                    self.past[other] = value


def plain_input(spec: InputSpec, known: Mapping[str, Array]) -> Array:
    """An input by its name, or what follows from other arrays of the sample."""
    name = spec.name
    source = name if name in known else STATES.get(name, name)
    if source in known:
        return np.asarray(known[source]).astype(spec.dtype, copy=False)
    ids = next((known[one] for one in IDS if one in known), None)
    states = known.get("last_hidden_state")
    fill: dict[str, Any] = {}
    if ids is not None:
        fill = {
            "attention_mask": np.ones(ids.shape),
            "token_type_ids": np.zeros(ids.shape),
            "position_ids": np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        }
    elif states is not None and source == "attention_mask":
        fill = {"attention_mask": np.ones(states.shape[:2])}
    if source in fill:
        return np.asarray(fill[source]).astype(spec.dtype)
    raise MissingInputError(f"nothing fills its input {name!r}; give data that has it, such as an .npz")
