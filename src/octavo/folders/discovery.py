"""What a model folder holds: its parts, the files that belong beside them, and what its configuration says.

Parts lie in the folder, in ``onnx/`` or one level below (``text_encoder/model.onnx``). A file whose name ends
like that of a variant (``model_q4.onnx``) beside the file it was made from is a variant, not a part. So is
one with the same inputs and outputs whose name says that a tool has changed it (``model_qint8_avx512.onnx``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octavo.core import files
from octavo.errors import ModelError
from octavo.folders.parts import Part, Role, read_part
from octavo.folders.variants import SUFFIXES

MAX_PARTS = 64  # of one folder; the largest pipelines in use have a dozen
MAX_TOKENS = 1 << 31  # in a vocabulary
MOST_CONFIG = 64 << 20  # bytes of a configuration file
_CONFIGS = ("config.json", "generation_config.json", "genai_config.json", "preprocessor_config.json")
_BESIDE = (".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken", ".bpe", ".md", ".yaml", ".yml")
_PLAIN_NAMES = ("LICENSE", "NOTICE", "COPYING")
_MADE = re.compile(  # what tools add to the name of a model that they optimize or quantize
    r"[_.-](o[1-4]|opt(imi[sz]ed)?|sim(plified)?|slim|.*(int\d|quant|fp16|float16|bf16|half|\d-?bit|q\d).*)",
    re.IGNORECASE,
)
_ORDER = (
    Role.VISION, Role.PAIR, Role.AUDIO, Role.TEXT, Role.EMBEDDING, Role.DECODER, Role.MERGED_DECODER,
    Role.DECODER_WITH_PAST, Role.MODEL,
)  # fmt: skip


@dataclass(frozen=True)
class ModelFolder:
    """A folder that was looked through."""

    root: Path
    parts: tuple[Part, ...]  # in the order in which a pipeline runs them
    beside: tuple[Path, ...]  # files that belong to the model, such as its tokenizer
    left_out: tuple[Path, ...]  # files that are not copied
    config: Mapping[str, Any] = field(default_factory=dict)  # of all configuration files together

    @property
    def tokenizer(self) -> Path | None:
        """Return the folder's tokenizer."""
        path = self.root / "tokenizer.json"
        return path if path.is_file() else None

    @property
    def is_for_genai(self) -> bool:
        """Whether onnxruntime-genai reads the folder, which knows parts by the names in its configuration."""
        return (self.root / "genai_config.json").is_file()

    @property
    def is_for_web(self) -> bool:
        """Whether transformers and transformers.js read the folder, which know parts by fixed names."""
        return "model_type" in self.config and not self.is_for_genai

    def token(self, name: str) -> int | None:
        """A token's id by the name of its setting, such as ``eos_token_id``; of several the first."""
        value = self.config.get(name)
        return _token(value[0] if isinstance(value, list) and value else value)

    @property
    def variants(self) -> tuple[Path, ...]:
        """Other forms of the parts that are in the folder already."""
        return tuple(path for path in self.left_out if path.suffix == ".onnx")

    @property
    def links(self) -> tuple[Path, ...]:
        """Files that belong to the model and are not copied, as they are links to other places."""
        return tuple(path for path in self.left_out if _belongs(path))

    @property
    def forced_tokens(self) -> list[int]:
        """The tokens that always follow the first one, such as Whisper's language and task."""
        given = self.config.get("forced_decoder_ids")
        found: list[int] = []
        for pair in given if isinstance(given, list) else ():
            token = _token(pair[1]) if isinstance(pair, list) and len(pair) == 2 else None
            if token is None or pair[0] != len(found) + 1:
                break  # the model says this one itself
            found.append(token)
        return found


def _token(value: object) -> int | None:
    """What a configuration gives as a token's id, if it can be one."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < MAX_TOKENS else None


def read_folder(root: Path) -> ModelFolder:
    """Look through a folder."""
    if not root.is_dir():
        raise ModelError(f"There is no folder {root}; give the folder that holds the model's ONNX files.")
    root = root.resolve()
    found = [path for place in _folders(root) for path in sorted(place.glob("*.onnx"))]
    originals = [path for path in found if not _is_variant(path)]
    if not originals:
        raise ModelError(f"{root} holds no ONNX file, neither itself nor one level below; export it first.")
    if len(originals) > MAX_PARTS:
        raise ModelError(
            f"{root} holds {len(originals)} ONNX files, and a model has at most {MAX_PARTS} parts; give the"
            " folder of one model."
        )
    read = [read_part(path, root) for path in originals]
    parts = [part for part in read if not any(_is_made_of(part, other) for other in read)]
    parts.sort(key=lambda part: (_ORDER.index(part.role), part.name))
    weights = {file.resolve() for part in read for file in part.files} | {path.resolve() for path in found}
    others = [path for path in _files(root) if path.resolve() not in weights]
    beside = tuple(path for path in others if _belongs(path) and _is_own(path, root))
    own = {part.path for part in parts}
    variants = tuple(path for path in found if path not in own)
    left_out = tuple(path for path in (*others, *variants) if path not in beside)
    return ModelFolder(root, tuple(parts), beside, left_out, _configuration(root))


def _files(root: Path) -> list[Path]:
    folders = [folder for folder in _folders(root) if not folder.is_symlink()]
    found = [path for folder in folders for path in folder.glob("*") if path.is_file()]
    return sorted(path for path in found if not path.name.startswith("."))


def _folders(root: Path) -> list[Path]:
    """The folder and those in it, each place once: links may lead back."""
    inner = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    inner.sort(key=lambda path: path.is_symlink())
    places: dict[Path, Path] = {}
    for folder in (root, *inner):
        places.setdefault(folder.resolve(), folder)
    return sorted(places.values())


def _belongs(path: Path) -> bool:
    return path.suffix.lower() in _BESIDE or path.stem.upper() in _PLAIN_NAMES


def _is_own(path: Path, root: Path) -> bool:
    """Whether a file belongs to the folder and is not a link to somewhere else.

    A snapshot in the cache of Hugging Face's hub is made of links into the ``blobs`` beside it.
    """
    real = path.resolve()
    places = [root, root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [root]
    return any(real.is_relative_to(place) for place in places) and real.stat().st_nlink == 1


def _is_variant(path: Path) -> bool:
    """Whether a file is named as a variant of another file beside it."""
    bases = (path.stem.removesuffix(suffix) for suffix in SUFFIXES if suffix and path.stem.endswith(suffix))
    return any(path.with_name(f"{base}.onnx").exists() for base in bases)


def _is_made_of(part: Part, other: Part) -> bool:
    """Whether a part is another one in another form, as its name and its inputs and outputs say."""
    tail = part.stem.removeprefix(other.stem)
    is_named = part.path.parent == other.path.parent and len(tail) < len(part.stem)
    same = set(part.input_names) == set(other.input_names) and set(part.outputs) == set(other.outputs)
    return is_named and same and _MADE.fullmatch(tail) is not None


def _configuration(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _CONFIGS:
        path = root / name
        if path.is_file():
            read = read_json(path)
            nested = read.get("model")
            found.update({**(nested if isinstance(nested, dict) else {}), **read})
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Return a configuration file, which may come from anybody."""
    try:
        read = files.read_json(path, MOST_CONFIG)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} can't be read as JSON: {error}. Repair or remove it.") from error
    if not isinstance(read, dict):
        raise ModelError(f"{path} holds a {type(read).__name__}, not the settings of a model.")
    return read
