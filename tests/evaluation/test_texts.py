"""Text classification, similarity and perplexity on made models, against plain computations."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octavo
from evaluation.made import WORDS, encoder, language_model, save, tokenizer
from octavo.errors import DataError, ModelError, RecipeError

pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def ids(text: str) -> list[int]:
    return [2 + WORDS.index(word) for word in text.split()]


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


def arrays(model: Path) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}


def labelled(model: Path, texts: list[str]) -> list[tuple[str, int]]:
    """Texts with the class that the model gives them, every fourth one wrong."""
    found = arrays(model)
    best = [int((found["table"][ids(text)].sum(0) @ found["w"]).argmax()) for text in texts]
    return [
        (text, (label + (i % 4 == 0)) % 3) for i, (text, label) in enumerate(zip(texts, best, strict=True))
    ]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "list", "named"])
def test_text_classification_from_every_form(form: str, folder: Path) -> None:
    model = save(encoder(scores=3), folder / "m.onnx")
    rows = labelled(model, sentences(40))
    options: dict[str, Any] = {}
    data: Any = folder / f"dev.{'csv' if form == 'named' else form}"
    match form:
        case "tsv":
            data.write_text("\n".join(f"{text}\t{label}" for text, label in rows) + "\n")
        case "csv":
            data.write_text("label,text\n" + "\n".join(f'{label},"{text}"' for text, label in rows))
        case "jsonl":
            data.write_text("\n".join(json.dumps({"text": t, "label": n}) for t, n in rows))
        case "named":
            data.write_text("id,words,label\n" + "\n".join(f"{i},{t},{n}" for i, (t, n) in enumerate(rows)))
            options["columns"] = ["words", "label"]
        case _:
            data = rows
    result = octavo.evaluate(model, data, "text-classification", batch=7, **options)
    assert (result["accuracy"], result.samples) == (0.75, 40)


def test_feeds_with_labels_need_no_tokenizer(folder: Path) -> None:
    model = save(encoder(scores=3), folder / "m.onnx")
    pairs = []
    for text, label in labelled(model, sentences(12)):
        row = np.array([ids(text)])
        pairs.append(({"input_ids": row, "attention_mask": np.ones_like(row)}, label))
    assert octavo.evaluate(model, pairs, "text-classification")["accuracy"] == 0.75


def test_similarity_is_spearman_of_the_cosines(folder: Path) -> None:
    model = save(encoder(), folder / "m.onnx")
    first, second = sentences(30, 1), sentences(30, 2)
    scores = np.random.default_rng(5).uniform(0, 5, 30).round(1)
    data = folder / "dev.tsv"
    data.write_text("\n".join(f"{s}\t{a}\t{b}" for s, a, b in zip(scores, first, second, strict=True)))
    table = arrays(model)["table"].astype(float)
    left, right = ([table[ids(text)].mean(0) for text in texts] for texts in (first, second))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(left, right, strict=True)]
    ranked = [
        [sum(b < a for b in v) + 0.5 * sum(b == a for b in v) for a in v] for v in (cosines, list(scores))
    ]
    want = np.corrcoef(*ranked)[0, 1]
    result = octavo.evaluate(model, data, "similarity", batch=4)
    assert result["spearman"] == pytest.approx(want, abs=1e-9)
    assert octavo.evaluate(model, data, "similarity", pooling="first")["spearman"] != pytest.approx(
        want, abs=1e-3
    )
    other = save(encoder(seed=2), folder / "other.onnx")
    difference = octavo.evaluate(other, data, "similarity", against=model).differences[0]
    assert difference.low <= difference.value <= difference.high
    assert difference.method == "bootstrap"


def test_perplexity_is_that_of_the_table(folder: Path) -> None:
    model = save(language_model(32), folder / "m.onnx")
    text = " ".join(sentences(60))
    (folder / "text.txt").write_text(text)
    table = arrays(model)["table"].astype(float)
    tokens = ids(text)
    windows = [tokens[i : i + 16] for i in range(0, len(tokens) - 15, 16)]
    nll = [
        math.log(np.exp(table[a]).sum()) - table[a][b]
        for window in windows
        for a, b in itertools.pairwise(window)
    ]
    want = math.exp(sum(nll) / len(nll))
    result = octavo.evaluate(model, folder / "text.txt", "perplexity", window=16)
    assert result["perplexity"] == pytest.approx(want)
    assert (result.samples, result.settings["tokens"]) == (len(windows), 15 * len(windows))
    feeds = [{"input_ids": np.array([window])} for window in windows]
    assert octavo.evaluate(model, feeds, "perplexity")["perplexity"] == result["perplexity"]
    np.save(folder / "ids.npy", np.array(tokens))
    assert (
        octavo.evaluate(model, folder / "ids.npy", "perplexity", window=16)["perplexity"]
        == result["perplexity"]
    )
    other = save(language_model(32, seed=1), folder / "other.onnx")
    compared = octavo.evaluate(other, folder / "text.txt", "perplexity", against=model, window=16)
    assert not compared.scores[0].higher_is_better


def test_beside_a_reference_the_divergence_of_predictions_and_equal_best_tokens_are_counted(
    folder: Path,
) -> None:
    model, other = (save(language_model(32, seed=s), folder / f"{s}.onnx") for s in (0, 1))
    text = " ".join(sentences(60))
    (folder / "text.txt").write_text(text)
    log_p, log_q = (
        table - np.log(np.exp(table).sum(axis=1, keepdims=True))
        for table in (arrays(path)["table"].astype(float) for path in (model, other))
    )
    tokens = ids(text)
    seen = np.concatenate([tokens[i : i + 15] for i in range(0, len(tokens) - 15, 16)]).astype(int)
    want = float((np.exp(log_p) * (log_p - log_q)).sum(axis=1)[seen].mean())
    same = float((log_p.argmax(axis=1) == log_q.argmax(axis=1))[seen].mean())
    one = octavo.evaluate(other, folder / "text.txt", "perplexity", against=model, window=16)
    assert one["kl"] == pytest.approx(want, rel=1e-5)
    assert one["same_top1"] == pytest.approx(same)
    assert [score.value for score in one.against_scores[1:]] == [0.0, 1.0]
    from octavo.evaluation.evaluator import evaluate_several

    several = evaluate_several([model, other, model], folder / "text.txt", "perplexity", window=16)
    assert [result["kl"] for result in several] == [one["kl"], 0.0]
    alone = octavo.evaluate(other, folder / "text.txt", "perplexity", window=16)
    assert [score.name for score in alone.scores] == ["perplexity"]


def fails(kind: Any, words: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(kind, match=words):
        octavo.evaluate(*arguments, **options)


def test_wrong_texts_and_models_are_told(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = save(encoder(scores=3), folder / "m.onnx")
    data = folder / "dev.tsv"
    data.write_text("w1 w2\t1\nw3\t7\n")
    task = "text-classification"
    fails(DataError, "label 7.* 3 classes", model, data, task)
    data.write_text("w1\tw2\t1\nw3\tw2\t2\n")
    fails(DataError, "3 columns, of which 1 hold numbers", model, data, task)
    fails(DataError, "has no column 'txt'", model, data, task, columns=["txt", "label"])
    data.write_text("w1\t1\nw3\n")
    fails(DataError, "Line 2 of .* has 1 columns", model, data, task)
    data.write_text("w1\t1\n\t0\n")
    fails(DataError, "Sample 1 has an empty text", model, data, task)
    data.write_text("")
    fails(DataError, "is empty", model, data, task)
    data.write_text("w1\t1\n")
    alone = save(encoder(scores=3), tmp_path_factory.mktemp("alone") / "m.onnx")
    fails(DataError, "no tokenizer", alone, data, task)
    fails(DataError, "3 columns|2 texts and a label are needed", model, data, "similarity")
    fails(RecipeError, "no pooling 'max'", model, data, "similarity", pooling="max")
    words = folder / "text.txt"
    words.write_text(" ".join(sentences(20)))
    fails(DataError, "fewer than one window", language(folder), words, "perplexity")
    fails(ModelError, "are logits", encoder_only(folder), words, "perplexity", window=8)
    made = save(language_model(8), folder / "small.onnx")
    fails((DataError, ModelError), "vocabulary|out of", made, np.array([[1, 7, 9]]), "perplexity")


def language(folder: Path, vocabulary: int = 32) -> Path:
    return save(language_model(vocabulary), folder / f"lm{vocabulary}.onnx")


def encoder_only(folder: Path) -> Path:
    return save(encoder(scores=3), folder / "encoder.onnx")
