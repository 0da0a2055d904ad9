"""Conversations as texts: the chat template of a model folder, rendered in a sandbox; needs jinja2.

A conversation is a list of ``{"role": …, "content": …}``, as rows of ``.jsonl`` files have them under
``messages``. The template lies in ``chat_template.jinja`` or in ``tokenizer_config.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo.core import files
from octavo.errors import DataError
from octavo.folders.discovery import MOST_CONFIG, ModelFolder, read_json

_TEMPLATE, _SETTINGS = "chat_template.jinja", "tokenizer_config.json"
_LONGEST_TEXT = 1 << 24  # characters of one conversation
_DEFAULT = "default"  # of several templates that a folder may have


class ChatTemplate:
    """The template of a folder; looked up and compiled when the first conversation comes."""

    def __init__(self, folder: ModelFolder) -> None:
        self.root = folder.root
        self._compiled: Any = None
        self._tokens: dict[str, str] = {}

    def text(self, conversation: list[Any], where: str) -> str:
        """Return a conversation as the text that the model was trained on."""
        if self._compiled is None:
            self._compile()
        try:
            found: str = self._compiled.render(
                messages=conversation, add_generation_prompt=False, **self._tokens
            )
        except Exception as error:  # a template may fail in any way
            raise DataError(f"{where}: the chat template of {self.root} fails: {error}.") from error
        if len(found) > _LONGEST_TEXT:
            raise DataError(f"{where}: the chat template of {self.root} makes {len(found)} characters of it.")
        return found

    def _compile(self) -> None:
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise DataError("Reading conversations needs jinja2: pip install 'octavo[text]'.") from error
        source = self._source()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._compiled = environment.from_string(source)
        except Exception as error:
            raise DataError(f"The chat template of {self.root} can't be read: {error}.") from error

    def _source(self) -> str:
        settings = read_json(self.root / _SETTINGS) if (self.root / _SETTINGS).is_file() else {}
        for name, value in settings.items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                self._tokens[name] = token
        place: Path = self.root / _TEMPLATE
        given = settings.get("chat_template")
        try:
            if place.is_file():
                given = files.read_bytes(place, MOST_CONFIG).decode("utf-8")
        except (OSError, ValueError) as error:
            raise DataError(f"{place} can't be read: {error}.") from error
        if isinstance(given, list):  # several, by their names
            named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
            given = named.get(_DEFAULT)
        if not isinstance(given, str):
            raise DataError(
                f"The data holds conversations, and {self.root} has no chat template ({_TEMPLATE}, or in"
                f" {_SETTINGS}); give texts."
            )
        return given


def _refuse(message: object) -> None:
    """What templates call where a conversation is not as they need it."""
    raise ValueError(str(message))
