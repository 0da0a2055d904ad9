"""Texts and a tokenizer file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import octavo
from data.feeding import feeds
from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

tokenizers = pytest.importorskip("tokenizers")

I64, I32 = np.dtype(np.int64), np.dtype(np.int32)
NAMES = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
OPEN = [InputSpec(name, I64, ("batch", "length")) for name in NAMES]
TEXTS = "one two three\n\ntwo\nthree one\nfour\n"


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"[PAD]": 0, "[UNK]": 1, "one": 2, "two": 3, "three": 4}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts.txt").write_text(TEXTS, encoding="utf-8")
    return tmp_path / "texts.txt"


def test_a_line_is_a_sample_and_blank_lines_are_none(texts: Path, tokenizer: Path) -> None:
    found = Feeds(octavo.text(texts, tokenizer), OPEN)
    assert len(found) == 4
    assert [feed["input_ids"].tolist() for feed in found] == [[[2, 3, 4]], [[3]], [[4, 2]], [[1]]]
    assert [feed["input_ids"].tolist() for feed in found.portion(1, 3)] == [[[3]], [[4, 2]]]


def test_a_batch_is_padded_to_its_longest_and_all_inputs_are_filled(texts: Path, tokenizer: Path) -> None:
    first, second = feeds(octavo.text(texts, tokenizer, batch=2), OPEN)
    assert first["input_ids"].tolist() == [[2, 3, 4], [3, 0, 0]]
    assert first["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert first["token_type_ids"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert first["position_ids"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert second["input_ids"].tolist() == [[4, 2], [1, 0]]


def test_fixed_sizes_and_types_are_the_models(texts: Path, tokenizer: Path) -> None:
    specs = [InputSpec("input_ids:0", I32, (3, 5)), InputSpec("input_mask", np.dtype(np.float32), (3, 5))]
    found = FingerprintedSamples(octavo.text(texts, tokenizer), specs)
    (feed,) = found
    assert feed["input_ids:0"].shape == (3, 5)
    assert feed["input_ids:0"].dtype == I32
    assert feed["input_mask"].sum() == 6
    assert "the last 1 samples" in " ".join(found.notes)
    with pytest.raises(DataError, match=r"batches of 3.* 2"):
        Feeds(octavo.text(texts, tokenizer, batch=2), specs)


def test_texts_are_cut(texts: Path, tokenizer: Path) -> None:
    assert next(feeds(octavo.text(texts, tokenizer, max_length=2), OPEN))["input_ids"].tolist() == [[2, 3]]


def test_a_limit_counts_texts(texts: Path, tokenizer: Path) -> None:
    found = Feeds(octavo.text(texts, tokenizer, batch=2), OPEN, limit=3)
    assert [feed["input_ids"].shape[0] for feed in found] == [2, 1]


def test_padding_on_the_left_counts_positions_from_the_first_token(texts: Path, tokenizer: Path) -> None:
    made = tokenizers.Tokenizer.from_file(str(tokenizer))
    made.enable_padding(direction="left", pad_id=1)
    made.save(str(tokenizer.with_name("left.json")))
    feed = next(feeds(octavo.text(texts, tokenizer.with_name("left.json"), batch=2), OPEN))
    assert feed["input_ids"].tolist() == [[2, 3, 4], [1, 1, 3]]
    assert feed["position_ids"].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_columns_of_tables(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"text": "one", "label": 0}, {"text": "two", "label": 1}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text('text,review\n"one, two",two\n"three\nfour",one\n')
    (tmp_path / "a.tsv").write_text("text\treview\none\ttwo\n")
    ids = []
    for name, column in (("a.jsonl", None), ("a.csv", None), ("a.csv", "review"), ("a.tsv", "review")):
        found = feeds(octavo.text(tmp_path / name, tokenizer, column=column), OPEN)
        ids.append([feed["input_ids"].tolist()[0] for feed in found])
    assert ids == [[[2], [3]], [[2, 1, 3], [4, 1]], [[3], [2]], [[3]]]
    with pytest.raises(DataError, match=r"a\.jsonl, line 1 has no column 'review'; it has text, label"):
        Feeds(octavo.text(tmp_path / "a.jsonl", tokenizer, column="review"), OPEN)


def test_a_list_of_texts(tokenizer: Path) -> None:
    found = Feeds(octavo.text(["one", "two two"], tokenizer), OPEN)
    assert [feed["input_ids"].tolist() for feed in found] == [[[2]], [[3, 3]]]
    with pytest.raises(DataError, match="is of type int"):
        Feeds(octavo.text(["one", 2], tokenizer), OPEN)  # type: ignore[list-item]


def test_a_source_of_texts_travels(texts: Path, tokenizer: Path) -> None:
    source = octavo.text(texts, tokenizer, batch=3).for_inputs(OPEN)
    sent = pickle.loads(pickle.dumps(source))
    assert sent.length == source.length == 2
    assert [f["input_ids"].tolist() for f in sent.portion(1)] == [[[1]]]


def test_what_is_said_when_something_is_wrong(tmp_path: Path, texts: Path, tokenizer: Path) -> None:
    cases = [
        (texts, tokenizer, [*OPEN, InputSpec("past", I64, (1,))], "'past', which a tokenizer does not fill"),
        (texts, tokenizer, [OPEN[1]], "no input of token ids"),
        (texts, texts, OPEN, r"texts\.txt can't be read as a tokenizer"),
        (tmp_path / "absent.txt", tokenizer, OPEN, r"absent\.txt can't be read as text"),
        (tmp_path / "empty.txt", tokenizer, OPEN, "holds 0 texts"),
        (tmp_path / "latin.txt", tokenizer, OPEN, r"latin\.txt can't be read as text"),
        (tmp_path / "bad.jsonl", tokenizer, OPEN, r"bad\.jsonl can't be read as text"),
    ]
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "latin.txt").write_bytes(b"\xff\xfe\xfa")
    (tmp_path / "bad.jsonl").write_text("{no json")
    for given, words, specs, message in cases:
        with pytest.raises(DataError, match=message):
            Feeds(octavo.text(given, words), specs)
    with pytest.raises(DataError, match="has no columns"):
        Feeds(octavo.text(texts, tokenizer, column="a"), OPEN)


def test_a_cache_is_filled_with_one_that_holds_nothing(tokenizer: Path) -> None:
    shape = ("batch", 3, "past_sequence_length", 16)
    past = [InputSpec(f"past_key_values.0.{part}", np.dtype(np.float32), shape) for part in ("key", "value")]
    (feed,) = feeds(octavo.text(["one two", "two"], tokenizer, batch=2), [*OPEN, *past])
    assert feed["past_key_values.0.key"].shape == (2, 3, 0, 16)
    assert feed["past_key_values.0.value"].dtype == np.float32
