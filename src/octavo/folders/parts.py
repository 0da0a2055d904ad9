"""The parts of a model folder: what each ONNX file is, by its inputs and outputs first and its name second.

====================  ==================================================================================
``text encoder``      token ids in, hidden states or scores out
``vision encoder``    ``pixel_values`` in
``pair of encoders``  ``pixel_values`` and token ids in
``audio encoder``     ``input_features`` or ``input_values`` in
``token embedding``   token ids in, ``inputs_embeds`` out
``decoder``           next-token scores without a cache of keys and values in its inputs
``decoder with past`` next-token scores, with that cache
``merged decoder``    both in one file, chosen by ``use_cache_branch``
``model``             anything else
====================  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from octavo.data.decoder import is_past
from octavo.folders.variants import SUFFIXES
from octavo.model.files import io
from octavo.model.graph import meta
from octavo.model.graph.merging import CACHE_BRANCH
from octavo.model.runtime.samples import specs_of
from octavo.model.runtime.session import InputSpec

IDS = ("input_ids", "decoder_input_ids")
EMBEDS = ("inputs_embeds", "decoder_inputs_embeds")
PIXELS = ("pixel_values",)
STATES = {"encoder_hidden_states": "last_hidden_state", "encoder_attention_mask": "attention_mask"}
SOUND = ("input_features", "input_values", "audio_features", "audio_values")


class Role(Enum):
    """What a part does."""

    TEXT = "text encoder"
    VISION = "vision encoder"
    PAIR = "pair of encoders"
    AUDIO = "audio encoder"
    EMBEDDING = "token embedding"
    DECODER = "decoder"
    DECODER_WITH_PAST = "decoder with past"
    MERGED_DECODER = "merged decoder"
    MODEL = "model"

    @property
    def generates(self) -> bool:
        """Whether the part predicts tokens one after another."""
        return self in (Role.DECODER, Role.DECODER_WITH_PAST, Role.MERGED_DECODER)


@dataclass(frozen=True)
class Part:
    """One ONNX file of a folder."""

    name: str  # the path below the folder, without its suffix: onnx/encoder_model
    path: Path
    role: Role
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    files: tuple[Path, ...]  # the file itself and those that hold its weights
    bytes: int  # of all of them

    @property
    def stem(self) -> str:
        """The file's name without its suffix, which clients know the part by."""
        return self.path.stem

    @property
    def base(self) -> str:
        """How the names of its variants begin: without ``_fp16``, where the folder has no other form."""
        found = (suffix for suffix in SUFFIXES if suffix and self.stem.endswith(suffix))
        return self.stem.removesuffix(next(found, ""))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of all inputs."""
        return tuple(spec.name for spec in self.inputs)

    @property
    def past(self) -> tuple[InputSpec, ...]:
        """The inputs that are a cache of keys and values."""
        return tuple(spec for spec in self.inputs if is_past(spec))

    @property
    def reads_encoder(self) -> bool:
        """Whether the part attends to the states of an encoder."""
        return any("encoder" in name for name in self.input_names)


def read_part(path: Path, root: Path) -> Part:
    """Look at one ONNX file; its weights are not read."""
    model = io.load(path)
    inputs = tuple(specs_of(model))
    outputs = tuple(value.name or "" for value in model.graph.outputs)
    weights = sorted(file for file in map(Path, meta.of(model).files) if file.resolve() != path.resolve())
    name = path.relative_to(root).with_suffix("").as_posix()
    size = sum(file.stat().st_size for file in (path, *weights))
    return Part(name, path, role_of(path.stem, inputs, outputs), inputs, outputs, (path, *weights), size)


def role_of(stem: str, inputs: tuple[InputSpec, ...], outputs: tuple[str, ...]) -> Role:
    """Return what a model with these inputs and outputs does."""
    names = {spec.name for spec in inputs}
    takes_tokens = bool(names & {*IDS, *EMBEDS})
    if CACHE_BRANCH in names:
        return Role.MERGED_DECODER
    if takes_tokens and any(is_past(spec) for spec in inputs):
        return Role.DECODER_WITH_PAST
    gives_cache = any(name.startswith("present") for name in outputs)
    if takes_tokens and (gives_cache or ("encoder_hidden_states" in names and "logits" in outputs)):
        return Role.DECODER
    if names & set(SOUND):
        return Role.AUDIO
    if names & set(PIXELS):
        return Role.PAIR if names & set(IDS) else Role.VISION
    if names & set(IDS) and len(outputs) == 1 and outputs[0] in EMBEDS:
        return Role.EMBEDDING
    if names & set(IDS) and "logits" in outputs and "decoder" in stem:
        return Role.DECODER
    return Role.TEXT if names & set(IDS) else Role.MODEL
