"""Inputs of models of speech, held to formulas written out independently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.data.audio.features import LogMel, Waveform, features_of, mel_filters
from octavo.data.audio.wav import Sound
from octavo.errors import DataError

WHISPER: dict[str, Any] = {
    "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80, "sampling_rate": 16000,
    "n_fft": 400, "hop_length": 160, "chunk_length": 30,
}  # fmt: skip


def tone(seconds: float, rate: int = 16000, hz: float = 440.0) -> Sound:
    return Sound(
        (0.3 * np.sin(np.arange(int(seconds * rate)) / rate * 2 * np.pi * hz)).astype(np.float32), rate
    )


def test_whisper_reads_thirty_seconds_in_three_thousand_frames() -> None:
    (found,) = features_of(WHISPER).inputs(tone(5))
    assert found.shape == (1, 80, 3000) and found.dtype == np.float32
    assert found.max() - found.min() <= 2.0001  # 8 decades below the highest, divided by 4


def test_the_power_of_a_frame_is_that_of_a_discrete_fourier_transform() -> None:
    settings = LogMel(seconds=1)
    sound = np.random.default_rng(0).standard_normal(16000)
    frame = sound[160 * 7 - 200 : 160 * 7 + 200] * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400))
    turns = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    due = np.log10(mel_filters(settings) @ np.abs(turns @ frame) ** 2)
    found = settings.spectrogram(sound.astype(np.float32))[:, 7]
    np.testing.assert_allclose(4 * found - 4, due, atol=1e-3)


def test_mel_filters_have_an_area_of_one_and_slaneys_corners() -> None:
    filters = mel_filters(LogMel())
    peaks = filters.argmax(axis=1) * 40.0
    assert np.all(np.diff(peaks) >= 0) and peaks[-1] < 8000
    areas = filters.sum(axis=1) * 40
    np.testing.assert_allclose(areas[30:], 1, atol=0.15)  # wide enough for the grid of 40 Hz


def test_a_tone_is_loudest_in_the_band_that_holds_it() -> None:
    settings = LogMel(seconds=2)
    band = settings.spectrogram(tone(2, hz=3000).samples)[:, 50].argmax()
    assert abs(mel_filters(settings)[band].argmax() * 40 - 3000) <= 100


def test_a_long_clip_is_cut_and_a_short_rest_left_out() -> None:
    assert len(list(LogMel(seconds=1).inputs(tone(2.05)))) == 2
    assert len(list(LogMel(seconds=1).inputs(tone(2.5)))) == 3
    assert len(list(LogMel(seconds=1).inputs(tone(0.01)))) == 1


def test_waveforms_have_a_mean_of_zero_and_a_deviation_of_one() -> None:
    config = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": True}
    (found,) = features_of(config).inputs(Sound(tone(1, 8000).samples + np.float32(0.1), 8000))
    assert found.shape == (1, 16000)
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=1e-3)
    assert features_of({**config, "do_normalize": False}) == Waveform(normalize=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"feature_extractor_type": "SeamlessM4TFeatureExtractor"}, "Seamless"),
        ({"feature_extractor_type": None}, "no feature extractor"),
        ({"n_fft": 0}, "n_fft"),
        ({"hop_length": 1e9}, "hop_length"),
        ({"chunk_length": True}, "chunk_length"),
    ],
)
def test_settings_that_are_not_known_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        features_of({**WHISPER, **changes})
