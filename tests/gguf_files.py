"""GGUF files made in tests: a writer, and encoders of some formats with the numbers that they stand for."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

CODES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "Q6_K": 14}


def halves(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers as float16: their bytes, and what they are then."""
    stored = numbers.astype("<f2")
    return stored.view(np.uint8).reshape(len(stored), -1), stored.astype(np.float64)


def packed(q: np.ndarray) -> np.ndarray:
    """32 integers of 4 bits in 16 bytes: the first half low, the second high."""
    return (q[:, :16] | q[:, 16:] << 4).astype(np.uint8)


def encoded(name: str, values: np.ndarray) -> tuple[bytes, np.ndarray]:
    """A matrix in a format: its bytes, and the numbers that they stand for."""
    tiles = values.reshape(-1, 32).astype(np.float64)
    if name == "F32":
        return values.astype("<f4").tobytes(), values.astype(np.float64)
    if name == "F16":
        return values.astype("<f2").tobytes(), values.astype("<f2").astype(np.float64)
    if name in ("Q4_0", "Q5_0", "Q8_0"):
        half = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128}[name]
        scale, d = halves(np.abs(tiles).max(axis=1, keepdims=True) / (half - 1))
        q = np.clip(np.rint(tiles / np.where(d == 0, 1, d)), -half, half - 1).astype(int)
        real, raised = q * d, (q + half).astype(np.uint8)
        if name == "Q8_0":
            parts = [scale, q.astype(np.int8).view(np.uint8)]
        elif name == "Q4_0":
            parts = [scale, packed(raised)]
        else:
            fifth = np.packbits(raised >> 4, axis=1, bitorder="little")
            parts = [scale, fifth, packed(raised & 15)]
    else:
        low, m = halves(tiles.min(axis=1, keepdims=True))
        scale, d = halves((tiles.max(axis=1, keepdims=True) - m) / 15)
        q = np.clip(np.rint((tiles - m) / np.where(d == 0, 1, d)), 0, 15).astype(np.uint8)
        real, parts = q * d + m, [scale, low, packed(q)]
    return np.concatenate(parts, axis=1).tobytes(), real.reshape(values.shape)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return _text(name) + struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return _text(name) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return _text(name) + struct.pack("<II", 4, value)


def write_gguf(
    path: Path, tensors: Mapping[str, tuple[str, np.ndarray]], metadata: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Write a file of (format, values), and return the numbers that it holds."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_entry(*one) for one in metadata.items())
    body, real = b"", {}
    for name, (kind, values) in tensors.items():
        content, real[name] = encoded(kind, values)
        dims = values.shape[::-1]
        head += _text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", CODES[kind], len(body))
        body += content + b"\0" * (-len(content) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + body)
    return real
