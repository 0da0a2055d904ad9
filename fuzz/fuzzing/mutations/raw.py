"""Changes to bytes, whatever they mean."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random

MOST_BYTES = 1 << 16
NUMBERS = (0, 1, -1, 2, 3, 7, 8, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 1000, 4096,
           65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 32,
           (1 << 53) + 1, (1 << 62), (1 << 63) - 1, -(1 << 63))  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 1e-38, 3.4e38, -3.4e38, 1e39, 1e300, 1e-320,
          float("inf"), float("-inf"), float("nan"), 0.1, 255.0, 65504.0, 1e10)  # fmt: skip
_FORMS = ("<b", "<H", "<I", "<Q", ">H", ">I", "<f", "<d")


def mutate(data: bytes, chance: Random, words: Sequence[bytes] = ()) -> bytes:
    """One to four small changes."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _change(changed, chance, words)
    return bytes(changed[:MOST_BYTES])


def _change(data: bytearray, chance: Random, words: Sequence[bytes]) -> None:
    at = chance.randrange(len(data) + 1)
    length = chance.choice((1, 1, 2, 4, 8, chance.randrange(1, 64)))
    match chance.randrange(8 if words else 7):
        case 0 if data:
            data[min(at, len(data) - 1)] ^= 1 << chance.randrange(8)
        case 1:
            del data[at : at + length]
        case 2:
            data[at:at] = chance.randbytes(length)
        case 3:
            data[at:at] = data[at : at + length] * chance.choice((1, 2, 50))
        case 4:
            number = _number(chance)
            data[at : at + len(number)] = number
        case 5:
            other = chance.randrange(len(data) + 1)
            data[at : at + length] = data[other : other + length]
        case 6:
            del data[at:]
        case 7:
            data[at : at + chance.choice((0, 0, length))] = chance.choice(words)
        case _:
            data[at:at] = bytes(length)


def _number(chance: Random) -> bytes:
    form = chance.choice(_FORMS)
    if form[1] in "fd":
        value = chance.choice(FLOATS)
        return struct.pack("<d", value) if form == "<d" else struct.pack("<d", value)[-4:]
    size = struct.calcsize(form)
    return (chance.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little" if form[0] == "<" else "big")


def text(chance: Random) -> str:
    """A text that somebody might want to hide in a file."""
    return chance.choice(TEXTS)


TEXTS = ("", " ", "x", "../../etc/passwd", "/etc/passwd", "..\\..\\x", "C:\\x", "a/../../b",
         ".", "..", "nul", "\0", "a\0b", "\n", "\x1b[2J", "<script>alert(1)</script>", "{}",
         "%s%n", "\u202e", "é" * 50, "😀", "A" * 5000, "__class__", "nan", "inf", "1e999", "-1",
         "0x10", "9" * 400, "True", "null", "re:(a+)+$", "re:(", "*", "[", "file:///etc/passwd",
         "\\\\host\\share", "x" * 300 + "/y")  # fmt: skip
