"""``octavo quantize FOLDER``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folders.small_folders import text_encoder, texts
from folders.test_sound import speech_model
from folders.test_tasks import labelled_clips

from octavo.cli.main import main


def test_a_folder_is_quantized_in_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--data", str(data), "--threads", "1"]
    assert main([*command, "--variants", "q8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["kind"] == "folder" and answer["variants"][0]["file"] == "onnx/model_quantized.onnx"
    assert main([*command, "--variants", "q8,q2", "--min-cosine", "0.99"]) == 1
    shown = capsys.readouterr()
    assert "q2: cosine" in shown.out and "requested, and not written: model q2" in shown.err


def test_flags_of_models_and_of_folders_are_kept_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = text_encoder(tmp_path / "source")
    assert main(["quantize", str(source), "-o", str(tmp_path / "out"), "--weights", "int4"]) == 2
    assert "--variants" in capsys.readouterr().err
    assert main(["quantize", str(source)]) == 2
    assert "-o OUT" in capsys.readouterr().err
    model = str(source / "model.onnx")
    assert main(["quantize", model, "-o", str(tmp_path / "m.onnx"), "--variants", "q8"]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert main(["quantize", str(source), "-o", str(tmp_path / "out"), "--part", "model"]) == 2
    assert "PART=NAMES" in capsys.readouterr().err


def test_data_is_given_for_parts_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--variants", "q8", "--threads", "1"]
    assert main([*command, "--data", f"model={data}"]) == 0
    assert main([*command, "--data", f"modle={data}"]) == 2
    assert "no part 'modle'; did you mean 'model'?" in capsys.readouterr().err


def test_what_is_not_there_is_named_before_the_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(tmp_path / "modle"), "-o", str(tmp_path)]) == 1
    assert "There is no model at" in capsys.readouterr().err
    source = text_encoder(tmp_path / "source")
    assert main(["quantize", str(source), "-o", str(tmp_path / "out"), "--data", "random:4"]) == 2
    assert "leave --data out" in capsys.readouterr().err


def test_labels_and_the_largest_drop_reach_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = speech_model(tmp_path / "model")
    sounds = labelled_clips(tmp_path / "clips", "word1 word2")
    (sounds / "labels.csv").rename(tmp_path / "said.csv")
    call = ["quantize", str(source), "-o", str(tmp_path / "out"), "--data", str(sounds), "--variants", "q8"]
    more = ["--labels", str(tmp_path / "said.csv"), "--max-drop", "900%", "--max-kl", "9"]
    assert main([*call, *more, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["variants"]
    judged = [row for row in rows if row["part"] != "decoder_model_merged"]  # made of two that were judged
    assert all(row["task"].startswith("WER") for row in judged)
    assert main([*call, "--max-drop", "lots"]) == 2
    assert "--max-drop can't be 'lots'" in capsys.readouterr().err
    assert main([*call, "--classes", "names.txt"]) == 2
    assert "--classes is about a single model" in capsys.readouterr().err
