"""WAV files of every kind are read as the samples that were written, and nonsense ends in a sentence."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.data.audio.wav import Sound, read_wav, wavs_below
from octavo.errors import DataError

TONE = 0.5 * np.sin(np.arange(1600) / 16000 * 2 * np.pi * 440)


def wav(
    path: Path, data: bytes, kind: int, bits: int, channels: int = 1, rate: int = 16000, **more: Any
) -> Path:
    """A file with a chunk that nobody knows before its samples."""
    width = channels * bits // 8
    head = struct.pack("<HHIIHH", kind, channels, rate, rate * width, more.get("width", width), bits)
    head += more.get("extension", b"")
    body = b"WAVE" + b"".join(
        name + struct.pack("<I", len(one)) + one + b"\0" * (len(one) % 2)
        for name, one in ((b"fmt ", head), (b"LIST", b"odd"), (b"data", data))
    )
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def packed24(samples: Any) -> bytes:
    whole = np.round(samples * 2**23).astype("<i4")
    return whole.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()


@pytest.mark.parametrize(
    ("kind", "bits", "data"),
    [
        (1, 8, np.round(TONE * 128 + 128).astype(np.uint8).tobytes()),
        (1, 16, np.round(TONE * 2**15).astype("<i2").tobytes()),
        (1, 24, packed24(TONE)),
        (1, 32, np.round(TONE * 2**31).astype("<i4").tobytes()),
        (3, 32, TONE.astype("<f4").tobytes()),
        (3, 64, TONE.astype("<f8").tobytes()),
    ],
)
def test_samples_of_every_width_are_read(tmp_path: Path, kind: int, bits: int, data: bytes) -> None:
    found = read_wav(wav(tmp_path / "a.wav", data, kind, bits))
    assert found.rate == 16000
    np.testing.assert_allclose(found.samples, TONE, atol=2.0 ** -min(bits, 24) * 2)


def test_channels_are_averaged(tmp_path: Path) -> None:
    both = np.stack([TONE, np.zeros_like(TONE)], 1)
    found = read_wav(wav(tmp_path / "a.wav", both.astype("<f4").tobytes(), 3, 32, channels=2))
    np.testing.assert_allclose(found.samples, TONE / 2, atol=1e-6)


def test_the_kind_of_an_extensible_format_is_looked_up(tmp_path: Path) -> None:
    extension = struct.pack("<HHIH", 22, 32, 0, 3) + b"\0" * 14
    data = TONE.astype("<f4").tobytes()
    found = read_wav(wav(tmp_path / "a.wav", data, 0xFFFE, 32, extension=extension))
    np.testing.assert_allclose(found.samples, TONE, atol=1e-6)


def test_a_recording_that_was_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = wav(tmp_path / "a.wav", TONE.astype("<f4").tobytes(), 3, 32)
    path.write_bytes(path.read_bytes()[:-1001])
    assert read_wav(path).samples.size == 1349


@pytest.mark.parametrize("rate", [8000, 22050, 48000])
def test_another_rate_keeps_a_tone(rate: int) -> None:
    at_rate = Sound(np.sin(np.arange(rate) / rate * 2 * np.pi * 440).astype(np.float32), rate)
    due = np.sin(np.arange(16000) / 16000 * 2 * np.pi * 440)
    np.testing.assert_allclose(at_rate.at(16000), due, atol=1e-3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not begin"),
        (b"ID3\x04" + b"\0" * 60, "does not begin"),
        (b"RIFF\x04\0\0\0WAVE", "missing"),
    ],
)
def test_what_is_no_wav_is_refused_in_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_wav(tmp_path / "a.wav")


@pytest.mark.parametrize(
    ("kind", "bits", "more", "words"),
    [
        (1, 16, {"rate": 1}, "make no sense"),
        (1, 16, {"channels": 0}, "make no sense"),
        (1, 16, {"width": 3}, "make no sense"),
        (85, 16, {}, "not known"),
        (1, 12, {"width": 2}, "make no sense"),
    ],
)
def test_formats_that_make_no_sense_are_refused(
    tmp_path: Path, kind: int, bits: int, more: dict[str, int], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        read_wav(wav(tmp_path / "a.wav", b"\0" * 64, kind, bits, **more))


def test_folders_are_searched_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.WAV", "1.wav", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in wavs_below(tmp_path)] == ["1.wav", "2.WAV"]
