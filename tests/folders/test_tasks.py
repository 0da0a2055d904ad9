"""What variants cost in the task: words of transcripts and classes, beside float's or beside labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, tensor
from hypothesis import given
from hypothesis import strategies as st

import octavo
from folders.small_folders import VOCABULARY, WIDTH, Net, text_encoder, texts, write
from folders.test_folders import quantized, session
from folders.test_sound import clips, speech_model
from octavo.errors import DataError, OutputError
from octavo.folders.discovery import read_folder
from octavo.folders.fidelity import Figure
from octavo.folders.parts import Role
from octavo.folders.samples import folder_data
from octavo.folders.tasks import word_errors, words
from octavo.folders.variants import EIGHT_BITS
from octavo.tuning.requirements import Drop

LOOSE = {"max_kl": 9, "min_cosine": 0, "min_sqnr": 0}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Well, there's  NOT much!", ["well", "there's", "not", "much"]),
        ("pre-recorded – 12", ["pre-recorded", "12"]),
        ("Zażółć gęślą", ["zażółć", "gęślą"]),
        ("音声です ok", ["音", "声", "で", "す", "ok"]),
        ("…", []),
    ],
)
def test_words_have_no_case_and_no_punctuation(text: str, found: list[str]) -> None:
    assert words(text) == found


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_word_errors_are_the_fewest_edits(found: list[str], expected: list[str]) -> None:
    def fewest(x: list[str], y: list[str]) -> int:
        if not x or not y:
            return len(x) + len(y)
        return min(fewest(x[1:], y) + 1, fewest(x, y[1:]) + 1, fewest(x[1:], y[1:]) + (x[0] != y[0]))

    assert word_errors(found, expected) == fewest(found, expected)


@pytest.mark.parametrize(
    ("figure", "floor", "holds"),
    [
        (Figure("words", 0.12, float_value=0.10, count=50), EIGHT_BITS, True),  # one word
        (Figure("words", 0.12, float_value=0.10, count=100), EIGHT_BITS, False),
        (Figure("words", 0.05, float_value=0.10, count=100), EIGHT_BITS, True),
        (Figure("words", 0.04, count=100), EIGHT_BITS, True),
        (Figure("words", 0.05, count=100), EIGHT_BITS, False),
        (Figure("right", 0.89, float_value=0.9, count=100), EIGHT_BITS, True),
        (Figure("right", 0.88, float_value=0.9, count=100), EIGHT_BITS, False),
    ],
)
def test_a_task_may_lose_a_share_and_always_one(figure: Figure, floor: Any, holds: bool) -> None:
    assert figure.holds(floor) is holds


def heard(folder: Path, features: Any, suffixes: tuple[str, str, str] = ("", "", "")) -> list[str]:
    """The words of one clip, by onnxruntime alone."""
    names = ("encoder_model", "decoder_model", "decoder_with_past_model")
    parts = [session(folder / f"{name}{suffix}.onnx") for name, suffix in zip(names, suffixes, strict=True)]
    (states,) = parts[0].run(None, {"input_features": features})
    feed, cache, found, place = {"input_ids": np.int64([[1]]), "encoder_hidden_states": states}, {}, [], 1
    while len(found) < 224:
        kinds = [one.name for one in parts[place].get_outputs()]
        answer = dict(zip(kinds, parts[place].run(None, feed), strict=True))
        token = int(answer["logits"][0, -1].argmax())
        if token == 2:
            break
        found.append(token)
        cache |= {k.replace("present", "past_key_values"): v for k, v in answer.items() if k != "logits"}
        feed, place = {"input_ids": np.int64([[token]]), **cache}, 2
    return [VOCABULARY[token] for token in found if token > 3]


def test_words_unlike_those_of_float_are_counted_for_each_part_and_for_all_at_once(tmp_path: Path) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")
    result = quantized(source, tmp_path / "out", sounds, variants="q4", **LOOSE, max_drop=9)
    features = [item.pieces[0]["input_features"] for item in folder_data(read_folder(source), sounds).judged]
    assert len(features) == 1  # of five clips one is held back
    (due,) = [heard(source, one) for one in features]
    assert due
    onnx_folder = tmp_path / "out" / "onnx"
    names = ("encoder_model", "decoder_model", "decoder_with_past_model")
    for name in names:
        for other in names:  # the float ones beside the variant
            (onnx_folder / f"{other}.onnx").write_bytes((source / f"{other}.onnx").read_bytes())
        (trial,) = [one for one in result.written if one.part.stem == name]
        found = heard(onnx_folder, features[0], tuple("_q4" * (one == name) for one in names))
        assert trial.figures[-1].kind == "words" and trial.figures[-1].count == len(due)
        assert trial.figures[-1].value == pytest.approx(word_errors(found, due) / len(due))
    together = word_errors(heard(onnx_folder, features[0], ("_q4",) * 3), due) / len(due)
    (note,) = [note for note in result.notes if "at once" in note]
    assert f"{100 * together:.1f} % of {len(due)} words" in note
    assert "unlike float's" in str(result) and " task " in str(result)


def test_a_part_that_loses_words_is_refused(tmp_path: Path) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")
    loose = quantized(source, tmp_path / "loose", sounds, variants="q2", **LOOSE, max_drop=9)
    lost = [trial for trial in loose.written if trial.figures[-1].is_of_task]
    changed = [trial for trial in lost if trial.figures[-1].value > 0]
    assert changed  # 2 bits are too few for this model
    result = quantized(source, tmp_path / "out", sounds, variants="fp32,q2", **LOOSE, max_drop=0)
    assert {trial.part.stem for trial in result.refused} >= {trial.part.stem for trial in changed}
    assert all("at most 0 words" in trial.reason for trial in result.refused)


def labelled_clips(folder: Path, transcript: str, count: int = 5) -> Path:
    """Clips with a transcript for each."""
    clips(folder, count)
    rows = "".join(f'{number}.wav,"{transcript}"\n' for number in range(count))
    (folder / "labels.csv").write_text("file_name,transcription\n" + rows)
    return folder


def test_transcripts_beside_the_clips_are_what_is_right(tmp_path: Path) -> None:
    source = speech_model(tmp_path / "model")
    sounds = labelled_clips(tmp_path / "clips", "word1 word2 word3")
    result = quantized(source, tmp_path / "out", sounds, variants="q8", **LOOSE)
    (item,) = folder_data(read_folder(source), sounds).judged
    assert item.label == "word1 word2 word3"
    due = word_errors(heard(source, item.pieces[0]["input_features"]), words(item.label)) / 3
    judged = [trial for trial in result.written if trial.part.role is not Role.MERGED_DECODER]
    for trial in judged:
        assert trial.figures[-1].float_value == pytest.approx(due)
    assert f"float {100 * due:.1f} %" in str(result)
    manifest = json.loads((tmp_path / "out" / "octavo.json").read_text())
    rows = [row for row in manifest["variants"] if row["part"] != "decoder_model_merged"]
    assert len(rows) == len(judged) == 3 and all("WER" in row["task"] for row in rows)


def test_labels_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")
    with pytest.raises(DataError, match="holds 2 labels"):
        quantized(source, tmp_path / "out", sounds, labels=["one", "two"])
    with pytest.raises(DataError, match="no data"):
        quantized(source, tmp_path / "out", labels=["one"])
    with pytest.raises(DataError, match="more than anyone"):
        quantized(source, tmp_path / "out", sounds, labels=["word1 " * 100_000] * len(list(sounds.iterdir())))
    assert not (tmp_path / "out").exists()


def connectionist(folder: Path) -> Path:
    """A model that gives a sign for each frame of a waveform, with the vocabulary of wav2vec 2.0."""
    folder.mkdir()
    net = Net(3)
    net.constant("frames", np.int64([0, -1, 80]))
    x = net.linear(net.add("Reshape", ["input_values", "frames"], "framed"), "in", WIDTH, 80, 4)
    net.add("Identity", [net.linear(net.mlp(x, "mlp"), "head", 5)], "logits")
    inputs = [tensor("input_values", ["batch", "samples"])]
    write(folder / "model.onnx", model(net.nodes, inputs, [tensor("logits", ["b", "t", 5])], net.arrays))
    (folder / "vocab.json").write_text(json.dumps({"<pad>": 0, "|": 1, "a": 2, "b": 3, "c": 4}))
    (folder / "config.json").write_text(json.dumps({"model_type": "wav2vec2", "pad_token_id": 0}))
    settings = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_a_model_of_signs_by_frame_is_read_without_repetitions_and_blanks(tmp_path: Path) -> None:
    source, sounds = connectionist(tmp_path / "model"), clips(tmp_path / "clips")
    result = quantized(source, tmp_path / "out", sounds, variants="q8", **LOOSE, max_drop=9)
    (item,) = folder_data(read_folder(source), sounds).judged

    def text(path: Path) -> str:
        best = session(path).run(None, {"input_values": item.pieces[0]["input_values"]})[0][0].argmax(1)
        signs, last = "", -1
        for one in best:
            signs += "" if one in (0, last) else " abc"[one - 1]
            last = one
        return signs

    due, found = (
        text(p).split() for p in (source / "model.onnx", tmp_path / "out/onnx/model_quantized.onnx")
    )
    (trial,) = result.trials
    assert len(due) > 3 and trial.figures[-1].count == len(due)
    assert trial.figures[-1].value == pytest.approx(word_errors(found, due) / len(due))


def classifier(folder: Path) -> Path:
    """Scores of four classes of a text."""
    text_encoder(folder)
    made = onnx.load(folder / "model.onnx")
    made.graph.node[-1].output[0] = "states"
    net = Net(4)
    net.add("ReduceMean", ["states"], "pooled", axes=[1], keepdims=0)
    net.add("Identity", [net.linear("pooled", "head", 4)], "logits")
    made.graph.node.extend(net.nodes)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in net.arrays.items())
    del made.graph.output[:]
    made.graph.output.append(tensor("logits", ["batch", 4]))
    onnx.save(made, folder / "model.onnx")
    return folder


def test_classes_are_counted_where_samples_have_labels(tmp_path: Path) -> None:
    source = classifier(tmp_path / "model")
    rng = np.random.default_rng(5)
    ids = rng.integers(4, len(VOCABULARY), (40, 7))
    mask = np.ones_like(ids)
    scores = session(source / "model.onnx").run(None, {"input_ids": ids, "attention_mask": mask})[0]
    labels = np.where(np.arange(40) % 4 == 0, 0, scores.argmax(1))
    arrays = {"input_ids": ids, "attention_mask": mask}
    np.savez(tmp_path / "data.npz", **arrays, labels=labels)
    np.savez(tmp_path / "plain.npz", **arrays)
    own = quantized(source, tmp_path / "own", tmp_path / "data.npz", variants="q8", **LOOSE)
    given = quantized(
        source, tmp_path / "given", tmp_path / "plain.npz", variants="q8", labels=labels.tolist(), **LOOSE
    )
    none = quantized(source, tmp_path / "none", tmp_path / "plain.npz", variants="q8", **LOOSE)
    held_back = slice(16, None)  # eight of the 24 samples that run through the pipeline, and all others
    made = session(tmp_path / "own/onnx/model_quantized.onnx")
    found = made.run(None, {"input_ids": ids[held_back], "attention_mask": mask[held_back]})[0].argmax(1)
    for result in (own, given):
        figure = result.trials[0].figures[-1]
        assert (figure.kind, figure.count) == ("right", 24)
        assert figure.float_value == pytest.approx((scores.argmax(1) == labels)[held_back].mean())
        assert figure.value == pytest.approx((found == labels[held_back]).mean(), abs=0.05)
    assert not any(figure.is_of_task for figure in none.trials[0].figures)


def test_texts_may_have_their_labels_in_a_file(tmp_path: Path) -> None:
    source, data = classifier(tmp_path / "model"), texts(tmp_path / "texts.txt", 12)
    (source / "config.json").write_text(
        json.dumps({"id2label": {"0": "no", "1": "yes", "2": "so", "3": "?"}})
    )
    (tmp_path / "labels.txt").write_text("no\nyes\nso\n" * 4)
    result = quantized(source, tmp_path / "out", data, variants="q8", labels=tmp_path / "labels.txt", **LOOSE)
    assert result.trials[0].figures[-1].kind == "right"
    (tmp_path / "labels.txt").write_text("no\nnever\nso\n" * 4)
    with pytest.raises(DataError, match="'never'"):
        quantized(source, tmp_path / "out", data, variants="q8", labels=tmp_path / "labels.txt")


def test_parts_that_hold_one_by_one_are_judged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")
    count = 0

    def figure(_: Any, files: Any) -> Figure:
        nonlocal count
        count += 1
        return Figure("words", 0.01 * len(files) ** 2 + 0.001 * count, count=1000)

    monkeypatch.setattr("octavo.folders.tasks.Transcripts.figure", figure)
    result = octavo.quantize_folder(
        source,
        sounds,
        output=tmp_path / "out",
        variants="q8",
        max_drop=Drop(0.05),
        seconds=0,
        threads=1,
        **LOOSE,
    )
    (refused,) = result.refused
    assert refused.part.stem == "decoder_with_past_model" and "together" in refused.reason
    assert not (tmp_path / "out/onnx/decoder_with_past_model_quantized.onnx").exists()
    assert any("in 2 parts at once" in note for note in result.notes)


def test_what_auto_chooses_is_judged_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")

    def figure(_: Any, files: Any) -> Figure:
        wrong = 0.01 * len(files) ** 2 + 0.001 * ("decoder_model" in files)
        return Figure("words", wrong, count=1000)

    monkeypatch.setattr("octavo.folders.tasks.Transcripts.figure", figure)
    result = octavo.quantize_folder(
        source,
        sounds,
        output=tmp_path / "out",
        variants="auto",
        parts={"*": "q8"},
        max_drop=Drop(0.05),
        seconds=0,
        threads=1,
        **LOOSE,
    )
    assert result.chosen["decoder_model"] == "fp32"
    assert [name for part, name in result.chosen.items() if part != "decoder_model"] == ["q8", "q8"]
    (refused,) = result.refused
    assert refused.part.stem == "decoder_model" and "together with those of the other parts" in refused.reason
    assert any("2 parts at once" in note for note in result.notes)
    made = sorted(path.name for path in (tmp_path / "out").glob("*.onnx"))
    assert made == ["decoder_model.onnx", "decoder_with_past_model.onnx", "encoder_model.onnx"]
    assert (tmp_path / "out/decoder_model.onnx").stat().st_size == result.refused[0].part.bytes


def test_nothing_is_written_where_every_part_loses_words(tmp_path: Path) -> None:
    source, sounds = connectionist(tmp_path / "model"), clips(tmp_path / "clips")
    with pytest.raises(OutputError, match="words"):
        quantized(source, tmp_path / "out", sounds, variants="q2", **LOOSE, max_drop=0)
    assert not (tmp_path / "out").exists()
