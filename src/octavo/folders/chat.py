"""Conversations as texts: the chat template of a model folder, rendered in a process with limits.

A conversation is a list of ``{"role": …, "content": …}``, as rows of ``.jsonl`` files have them under
``messages``. The template lies in ``chat_template.jinja`` or in ``tokenizer_config.json``; it needs jinja2.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from octavo.core import files
from octavo.errors import DataError
from octavo.folders import chat_process
from octavo.folders.discovery import MOST_CONFIG, ModelFolder, read_json

_TEMPLATE, _SETTINGS = "chat_template.jinja", "tokenizer_config.json"
_DEFAULT = "default"  # of several templates that a folder may have
_PATIENCE = 300.0  # seconds of the clock for one conversation, on a busy machine


class ChatTemplate:
    """The template of a folder, for a ``with`` block; its process starts with the first conversation."""

    def __init__(self, folder: ModelFolder) -> None:
        self.root = folder.root
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def text(self, conversation: list[Any], where: str) -> str:
        """Return a conversation as the text that the model was trained on."""
        if self._process is None:
            template, tokens = self._source()
            self._process = _started()
            start = {"template": template, "tokens": tokens}
            _asked(self._process, start, f"The chat template of {self.root}", "can't be read")
        return _asked(self._process, conversation, f"{where}: the chat template of {self.root}")

    def _source(self) -> tuple[str, dict[str, str]]:
        """Return the template, and the special tokens that it may use."""
        settings = read_json(self.root / _SETTINGS) if (self.root / _SETTINGS).is_file() else {}
        tokens = {}
        for name, value in settings.items():
            token = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(token, str):
                tokens[name] = token
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
        return given, tokens


def _asked(process: subprocess.Popen[str], request: Any, what: str, wrong: str = "fails") -> str:
    """Return what the process answers."""
    timer = threading.Timer(_PATIENCE, process.kill)
    timer.start()
    line = ""
    try:
        if process.stdin is not None and process.stdout is not None:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
    except BrokenPipeError:
        pass
    finally:
        timer.cancel()
    if not line:
        raise DataError(f"{what} takes more than {chat_process.SECONDS:g} s, or crashes; give texts instead.")
    answer = json.loads(line)
    if "error" in answer:
        raise DataError(f"{what} {wrong}: {answer['error']}.")
    text: str = answer["text"]
    return text


def _started() -> subprocess.Popen[str]:
    if importlib.util.find_spec("jinja2") is None:
        raise DataError("Reading conversations needs jinja2: pip install 'octavo[text]'.")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-P", chat_process.__file__],  # as a script: it needs nothing else of Octavo
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
        env=environment,
    )
