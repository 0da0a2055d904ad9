"""Conversations become the texts that the folder's chat template makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from folders.small_folders import VOCABULARY, decoder
from octavo.errors import DataError
from octavo.folders.discovery import read_folder
from octavo.folders.samples import folder_data

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers")

TEMPLATE = (
    "{{ bos_token }} {% for message in messages %}\n"
    "{{ message['role'] }} {{ message['content'] }} {% endfor %}"
)
TALK = [{"role": "word1", "content": "word2 word3"}, {"role": "word4", "content": "word5"}]


def talks(path: Path, column: str = "messages") -> Path:
    path.write_text("".join(json.dumps({column: TALK}) + "\n" for _ in range(2)))
    return path


def with_settings(folder: Path, **settings: Any) -> Path:
    decoder(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", **settings}))
    return folder


def ids(source: Path, data: Path, **more: Any) -> list[list[int]]:
    found = folder_data(read_folder(source), data, **more)
    return [sample["input_ids"][0].tolist() for sample in found.samples]


DUE = [VOCABULARY.index(one) for one in ("<s>", "word1", "word2", "word3", "word4", "word5")]


@pytest.mark.parametrize(
    "template",
    [TEMPLATE, [{"name": "tools", "template": "x"}, {"name": "default", "template": TEMPLATE}]],
    ids=["one", "several"],
)
def test_a_template_of_the_tokenizers_settings_is_rendered(tmp_path: Path, template: object) -> None:
    source = with_settings(tmp_path / "model", chat_template=template)
    assert ids(source, talks(tmp_path / "d.jsonl")) == [DUE, DUE]


def test_a_template_in_a_file_of_its_own_goes_before(tmp_path: Path) -> None:
    source = with_settings(tmp_path / "model", chat_template="word9", bos_token={"content": "<s>"})
    (source / "chat_template.jinja").write_text(TEMPLATE)
    assert ids(source, talks(tmp_path / "d.jsonl", "talk"), column="talk") == [DUE, DUE]


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "no chat template"),
        ("{% if %}", "can't be read"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "fails"),
        ("{{ 1 / 0 }}", "line 1"),
    ],
)
def test_what_a_template_can_do_wrong_ends_in_a_sentence(
    tmp_path: Path, template: str | None, words: str
) -> None:
    source = with_settings(tmp_path / "model", **({"chat_template": template} if template else {}))
    with pytest.raises(DataError, match=words):
        ids(source, talks(tmp_path / "d.jsonl"))
