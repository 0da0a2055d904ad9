"""Sound, and what a folder says of how its model hears it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from hostile.sandbox import Sandbox
from octavo.data.audio.features import features_of
from octavo.data.audio.wav import Sound, read_wav
from octavo.errors import DataError


def _wav(kind: int, channels: int, rate: int, width: int, bits: int, size: int = 400) -> bytes:
    head = struct.pack("<HHIIHH", kind, channels, rate, rate, width, bits)
    body = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", size) + bytes(size)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


SOUNDS: dict[str, bytes] = {
    "empty": b"",
    "magic-alone": b"RIFF\0\0\0\0WAVE",
    "no-bits": _wav(1, 1, 16000, 0, 0),
    "no-channels": _wav(1, 0, 16000, 2, 16),
    "many-channels": _wav(1, 65535, 16000, 65535 * 2 & 0xFFFF, 16),
    "no-rate": _wav(1, 1, 0, 2, 16),
    "odd-bits": _wav(1, 1, 16000, 1, 7),
    "an-unknown-kind": _wav(99, 1, 16000, 2, 16),
    "floats-of-16-bits": _wav(3, 1, 16000, 2, 16),
}


@pytest.mark.parametrize("content", SOUNDS.values(), ids=SOUNDS.keys())
def test_a_sound_that_comes_from_anybody(sandbox: Sandbox, content: bytes) -> None:
    (sandbox.given / "a.wav").write_bytes(content)
    sandbox.refuses(lambda: read_wav(sandbox.given / "a.wav"), DataError, "a.wav")


def test_a_sound_that_grows_with_the_rate(sandbox: Sandbox) -> None:
    (sandbox.given / "a.wav").write_bytes(_wav(1, 1, 1000, 1, 8, 2_000_000))
    sandbox.refuses(lambda: read_wav(sandbox.given / "a.wav").at(192_000), DataError, "shorter")


def test_a_sound_whose_resampling_takes_more_memory_than_there_is(sandbox: Sandbox) -> None:
    (sandbox.given / "a.wav").write_bytes(_wav(1, 1, 1009, 1, 8, 4_999_999))
    sandbox.refuses(lambda: read_wav(sandbox.given / "a.wav").at(16_000), DataError, "memory")


CONFIGS: dict[str, dict[str, int]] = {
    "windows-beyond-memory": {"sampling_rate": 192_000, "n_fft": 8000, "hop_length": 16, "chunk_length": 300},
    "bins-beyond-memory": {
        "sampling_rate": 48_000, "n_fft": 2, "hop_length": 16, "chunk_length": 300, "feature_size": 1024,
    },
    "samples-beyond-memory": {"sampling_rate": 192_000, "hop_length": 8000, "chunk_length": 300},
}  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_that_asks_for_gigabytes(sandbox: Sandbox, config: dict[str, int]) -> None:
    whole: dict[str, Any] = {"feature_extractor_type": "WhisperFeatureExtractor", **config}
    sandbox.refuses(lambda: features_of(whole), DataError, "hop_length")


def test_long_windows_stay_in_little_memory(sandbox: Sandbox) -> None:
    config = {
        "feature_extractor_type": "WhisperFeatureExtractor", "sampling_rate": 32_000, "n_fft": 8000,
        "hop_length": 320, "chunk_length": 300,
    }  # fmt: skip
    sound = Sound(np.zeros(1000, np.float32), 32_000)
    found = sandbox.gives(lambda: [one.shape for one in features_of(config).inputs(sound)])
    assert found == [(1, 80, 30_000)]
