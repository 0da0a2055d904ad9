"""What models of speech read, as ``preprocessor_config.json`` of their folder says.

Whisper reads log-mel spectrograms: power spectra of windows of 25 ms every 10 ms, summed by triangles on the
mel scale, as ``log10``, no lower than 8 below the highest, and moved into about −1 … 1. wav2vec 2.0 and
models like it read the waveform, with a mean of 0 and a deviation of 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.data.audio.wav import MAX_SAMPLES, Floats, Sound
from octavo.errors import DataError

F64 = npt.NDArray[np.float64]
_KIND = "feature_extractor_type"
_LOG_MEL, _WAVEFORM = "WhisperFeatureExtractor", "Wav2Vec2FeatureExtractor"
_LIMITS = {  # of the numbers in a configuration, which may come from anybody
    "sampling_rate": (1000, 192_000), "feature_size": (1, 1024), "n_fft": (2, 8000),
    "hop_length": (16, 8000), "chunk_length": (1, 300),
}  # fmt: skip
_MOST_NUMBERS = 1 << 24  # samples of a piece, and numbers of its spectrogram
_BLOCK = 1 << 22  # samples of the windows that are looked at together
_TOP_MEL_HZ = 8000.0  # of Whisper's mel scale, whatever the rate is
_WAVEFORM_SECONDS = 30  # pieces that a long clip is cut into where the configuration names no length


@dataclass(frozen=True)
class LogMel:
    """The spectrograms of Whisper."""

    rate: int = 16000
    bins: int = 80
    window: int = 400  # samples
    hop: int = 160  # samples
    seconds: int = 30  # what the model hears at once; shorter clips are padded

    def inputs(self, sound: Sound) -> Iterator[Floats]:
        """The spectrogram of each piece of a clip, ``[1, bins, frames]``."""
        for piece in _pieces(sound.at(self.rate), self.rate * self.seconds):
            yield self.spectrogram(piece)[None]

    def spectrogram(self, samples: Floats) -> Floats:
        """The spectrogram of at most :attr:`seconds`."""
        length, edge = self.rate * self.seconds, self.window // 2
        padded = np.zeros(length, np.float64)
        padded[: samples.size] = samples[:length]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(padded, edge, "reflect"), self.window)
        windows = windows[:: self.hop][:-1]  # the last window is left out
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(self.window) / self.window)
        filters, blocks = mel_filters(self), []
        for first in range(0, len(windows), step := max(1, _BLOCK // self.window)):
            power = np.abs(np.fft.rfft(windows[first : first + step] * hann)) ** 2
            blocks.append(np.log10(np.maximum(filters @ power.T, 1e-10)))
        found = np.concatenate(blocks, axis=1)
        return np.asarray((np.maximum(found, found.max() - 8) + 4) / 4, np.float32)


@dataclass(frozen=True)
class Waveform:
    """The samples themselves, as wav2vec 2.0 reads them."""

    rate: int = 16000
    normalize: bool = True

    def inputs(self, sound: Sound) -> Iterator[Floats]:
        """The samples of each piece of a clip, ``[1, samples]``."""
        for piece in _pieces(sound.at(self.rate), self.rate * _WAVEFORM_SECONDS):
            if self.normalize:
                piece = (piece - piece.mean()) / np.sqrt(piece.var() + np.float32(1e-7))
            yield piece.astype(np.float32)[None]


def features_of(config: Mapping[str, Any]) -> LogMel | Waveform:
    """Return what a model reads, by the settings of its folder."""
    kind = config.get(_KIND)
    if kind == _LOG_MEL:
        found = LogMel(
            _number(config, "sampling_rate", 16000),
            _number(config, "feature_size", 80),
            _number(config, "n_fft", 400),
            _number(config, "hop_length", 160),
            _number(config, "chunk_length", 30),
        )
        length = found.rate * found.seconds
        frames = length // found.hop
        if max(length, frames * found.bins) > _MOST_NUMBERS or frames * found.window > MAX_SAMPLES:
            raise DataError(
                "preprocessor_config.json: a piece holds more numbers than a model of speech reads at once; "
                "correct sampling_rate, chunk_length, hop_length, n_fft and feature_size."
            )
        return found
    if kind == _WAVEFORM:
        return Waveform(_number(config, "sampling_rate", 16000), config.get("do_normalize") is not False)
    raise DataError(
        f"preprocessor_config.json names {kind or 'no feature extractor'}, and sound is read for {_LOG_MEL}"
        f" and {_WAVEFORM}; give the inputs of the model as arrays (.npz)."
    )


def _number(config: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = config.get(name, otherwise)
    low, high = _LIMITS[name]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise DataError(f"preprocessor_config.json: {name} is {value!r}; it must be from {low} to {high}.")
    return value


def _pieces(samples: Floats, length: int) -> Iterator[Floats]:
    """A clip in pieces of a length; a remainder shorter than a tenth of it is left out, unless it is all."""
    for first in range(0, max(samples.size, 1), length):
        piece = samples[first : first + length]
        if piece.size and (not first or piece.size > length // 10):
            yield piece


def mel_filters(settings: LogMel) -> F64:
    """Triangles on Slaney's mel scale, each with an area of one: ``[bins, frequencies]``."""
    frequencies = np.linspace(0, settings.rate / 2, settings.window // 2 + 1)
    corners = _to_hz(np.linspace(0, _to_mel(_TOP_MEL_HZ), settings.bins + 2))
    rising = (frequencies - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - frequencies) / np.diff(corners)[1:, None]
    return np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))[:, None]


# Slaney's scale is linear up to 1000 Hz (15 mel), and has 27 mel for each factor of 6.4 above.
def _to_mel(hz: float) -> float:
    return 15 + 27 * float(np.log(hz / 1000) / np.log(6.4)) if hz > 1000 else 3 * hz / 200


def _to_hz(mel: F64) -> F64:
    return np.where(mel > 15, 1000 * 6.4 ** ((mel - 15) / 27), 200 * mel / 3)
