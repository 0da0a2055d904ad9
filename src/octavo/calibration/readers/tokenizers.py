"""Tokenizer files, which may come with a model from anybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.errors import DataError

_MOST = 256 << 20  # bytes of a file; the largest vocabularies in use take a tenth of it


def open_tokenizer(path: Path) -> Any:
    """The tokenizer of a ``tokenizer.json``, apart from any other that was opened."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError("Reading texts needs tokenizers; pip install 'octavo[text]' brings it.") from error
    try:
        if not path.is_file() or path.stat().st_size > _MOST:
            raise ValueError("it is no regular file, or beyond 256 MiB")
        return Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # plain Exception, and a panic of native code is no Exception at all
        raise DataError(f"{path} can't be read as a tokenizer: {error}. Give a tokenizer.json.") from error


def encode(tokenizer: Any, texts: Sequence[str], path: Path) -> list[Any]:
    """The texts as the tokenizer encodes them."""
    try:
        return list(tokenizer.encode_batch(list(texts)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise DataError(
            f"The tokenizer {path} fails on a text: {error}. Give another tokenizer.json."
        ) from error
