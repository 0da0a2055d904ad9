"""Folders of models of speech: clips become what their configuration says, and decoders start as it says."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from builders import model, tensor

import octavo
from folders.small_folders import WIDTH, Net, encoder_decoder, text_encoder, write
from octavo.errors import DataError
from octavo.folders.discovery import read_folder
from octavo.folders.generation import Pipeline
from octavo.folders.samples import folder_data

SETTINGS = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": 1}


def speech_model(folder: Path, forced: object = None) -> Path:
    """An encoder of spectrograms of one second, and a decoder in two files."""
    encoder_decoder(folder)
    net = Net(5)
    x = net.add("Transpose", ["input_features"], "frames", perm=[0, 2, 1])
    net.add("Identity", [net.mlp(net.linear(x, "in", WIDTH, 80), "mlp")], "last_hidden_state")
    inputs = [tensor("input_features", ["batch", 80, 100])]
    outputs = [tensor("last_hidden_state", ["batch", 100, WIDTH])]
    write(folder / "encoder_model.onnx", model(net.nodes, inputs, outputs, net.arrays))
    (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS))
    if forced is not None:
        (folder / "generation_config.json").write_text(json.dumps({"forced_decoder_ids": forced}))
    return folder


def clips(folder: Path, count: int = 5) -> Path:
    """Noise, at a rate that is not the model's."""
    folder.mkdir()
    for number in range(count):
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
            samples = 0.2 * np.random.default_rng(number).standard_normal(8000)
            file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return folder


def test_clips_are_heard_and_go_through_the_whole_pipeline(tmp_path: Path) -> None:
    source, sounds = speech_model(tmp_path / "model"), clips(tmp_path / "clips")
    result = octavo.quantize_folder(
        source, sounds, output=tmp_path / "out", variants="q8", seconds=0, threads=1
    )
    assert not result.refused, result.refused
    assert {trial.part.stem for trial in result.written} == {
        "encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged",
    }  # fmt: skip


def test_one_clip_is_a_sample_for_each_piece_that_the_model_hears(tmp_path: Path) -> None:
    folder = read_folder(speech_model(tmp_path / "model"))
    found = folder_data(folder, clips(tmp_path / "clips", 1) / "0.wav")
    assert [sample["input_features"].shape for sample in found.samples] == [(1, 80, 100)]
    assert not found.made_up


@pytest.mark.parametrize(
    ("forced", "prompt"),
    [
        ([[1, 7], [2, 9]], [1, 7, 9]),
        ([[1, None], [2, 9]], [1]),  # the model finds the language itself
        ([[2, 9]], [1]),
        ("nonsense", [1]),
        ([[1], [1, -5], [1, True], 7], [1]),
        (None, [1]),
    ],
)
def test_a_decoder_starts_with_the_tokens_that_its_configuration_forces(
    tmp_path: Path, forced: object, prompt: list[int]
) -> None:
    folder = read_folder(speech_model(tmp_path / "model", forced))
    pipeline = Pipeline(folder, tmp_path, 1)
    pipeline.run(folder_data(folder, clips(tmp_path / "clips", 1)).samples)
    assert pipeline.feeds["decoder_model"][0]["input_ids"].tolist() == [prompt]


def test_sound_for_a_folder_that_hears_nothing_is_refused(tmp_path: Path) -> None:
    source, sounds = text_encoder(tmp_path / "model"), clips(tmp_path / "clips", 1)
    with pytest.raises(DataError, match="no part"):
        octavo.quantize_folder(source, sounds, output=tmp_path / "out")
