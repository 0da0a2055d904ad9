"""WAV files: integers of 8, 16, 24 and 32 bits and floats of 32 and 64, channels averaged."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from octavo.core import files
from octavo.errors import DataError

SUFFIXES = (".wav", ".wave")
MAX_BYTES = 512 << 20  # of one file: more than an hour in studio quality
MAX_SAMPLES = 1 << 28  # of one clip at the rate of the model: an hour at 74 kHz
_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE  # kinds of samples; the last names another one further on
_MAX_CHANNELS = 64  # more mean a damaged header
_RATES = range(1000, 1_000_001)  # Hz
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """A clip: its samples between −1 and 1, and how many there are in a second."""

    samples: Floats
    rate: int

    def at(self, rate: int) -> Floats:
        """The samples at another rate, with the frequencies that both rates have."""
        if rate == self.rate or not self.samples.size:
            return self.samples
        count = max(1, round(self.samples.size * rate / self.rate))
        if count > MAX_SAMPLES:
            raise DataError(f"A clip would have {count} samples at {rate} Hz; cut it into shorter ones.")
        try:
            return self._resampled(count)
        except MemoryError as error:
            raise DataError(
                f"A clip of {count} samples at {rate} Hz takes more memory than there is; cut it into "
                "shorter ones."
            ) from error

    def _resampled(self, count: int) -> Floats:
        spectrum = np.fft.rfft(self.samples.astype(np.float64))
        bins = count // 2 + 1
        kept = np.zeros(bins, np.complex128)
        common = min(bins, spectrum.size)
        kept[:common] = spectrum[:common]
        return np.asarray(np.fft.irfft(kept, count) * (count / self.samples.size), np.float32)


def wavs_below(folder: Path) -> list[Path]:
    """The WAV files of a folder and the folders in it, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def read_wav(path: Path) -> Sound:
    """Read a file that may come from anybody."""
    try:
        content = files.read_bytes(path, MAX_BYTES)
        return _parsed(content)
    except (OSError, ValueError, struct.error) as error:
        raise DataError(f"{path} can't be read as WAV: {error}. Convert it, or leave it out.") from error
    except MemoryError as error:
        raise DataError(f"{path} takes more memory than there is; cut it into shorter clips.") from error


def _parsed(content: bytes) -> Sound:
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise ValueError("it does not begin like one")
    head, data = b"", None
    place = 12
    while place + 8 <= len(content) and data is None:
        name, size = content[place : place + 4], int.from_bytes(content[place + 4 : place + 8], "little")
        body = content[place + 8 : place + 8 + size]  # a recorder that was cut off left a size too large
        if name == b"fmt ":
            head = body
        elif name == b"data":
            data = body
        place += 8 + size + size % 2
    if len(head) < 16 or data is None:
        raise ValueError("its format or its samples are missing")
    kind, channels, rate, _, width, bits = struct.unpack_from("<HHIIHH", head)
    if kind == _EXTENSIBLE and len(head) >= 26:
        kind = int.from_bytes(head[24:26], "little")
    is_whole = width * 8 == bits * channels and width > 0
    if not 0 < channels <= _MAX_CHANNELS or rate not in _RATES or not is_whole:
        raise ValueError(f"{channels} channels of {bits} bits at {rate} Hz make no sense")
    return Sound(_samples(data[: len(data) // width * width], kind, bits).reshape(-1, channels).mean(1), rate)


def _samples(data: bytes, kind: int, bits: int) -> Floats:
    if kind == _FLOATS and bits in (32, 64):
        found = np.frombuffer(data, f"<f{bits // 8}").astype(np.float32)
        return np.nan_to_num(found, nan=0.0, posinf=1.0, neginf=-1.0)
    if kind == _INTEGERS and bits == 8:  # the one unsigned type
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / np.float32(128)
    if kind == _INTEGERS and bits in (16, 32):
        return np.frombuffer(data, f"<i{bits // 8}").astype(np.float32) / np.float32(2.0 ** (bits - 1))
    if kind == _INTEGERS and bits == 24:
        whole = np.zeros((len(data) // 3, 4), np.uint8)
        whole[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return whole.view("<i4").reshape(-1).astype(np.float32) / np.float32(2.0**31)
    raise ValueError(f"samples of {bits} bits of kind {kind} are not known; PCM and floats are")
