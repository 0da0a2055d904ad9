"""Files of statistics: header and states changed, the digest right again, as somebody would who means it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import struct
from collections.abc import Iterator, Mapping
from random import Random
from zlib import crc32

import numpy as np

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import raw, tree
from octavo import calibration, pipeline
from octavo.calibration import saved
from octavo.calibration.engines import engine_of
from octavo.calibration.statistics import KINDS
from octavo.core import scheme
from octavo.core.qtypes import qtype
from octavo.core.requests import EveryNth, Extremes, Histogram, MagnitudeHistograms, Request
from octavo.core.stats import Range
from octavo.errors import OctavoError
from octavo.model.files import io

SCOPE = ("calibration/saved.py", "core/stats.py", "core/origin.py", "calibration/statistics",
         "calibration/methods")  # fmt: skip
SECONDS = 10.0

_START = b"OCTSTAT\x02"
Record = tuple[bytes, bytes, bytes]


@functools.cache
def seeds() -> list[bytes]:
    """Statistics of a small model, of each kind."""
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((2, 8)).astype(np.float32)} for _ in range(3)]
    model = made.models()[0]
    plain = octavo.calibrate(model, octavo.plan(model), data, threads=1, engine="serial")
    every = octavo.calibrate(model, octavo.plan(model), data, threads=1, engine="serial", every_method=True)
    return [plain.to_bytes(), every.to_bytes(), *_of_needs(model, data)]


def _of_needs(model: bytes, data: list[dict[str, np.ndarray]]) -> list[bytes]:
    """States with several parts, as the steps that win accuracy back collect them."""
    found = []
    for need in (
        Request(channels=1, moments=True),
        Request(gram=True, sums=True),
        Request(Histogram(subset=EveryNth(3))),
        Request(Extremes(each_sample=True)),
        Request(MagnitudeHistograms()),
    ):
        loaded = io.load(model)
        feeds = pipeline.samples_of(loaded, data, None)
        found.append(calibration.gather(loaded, {"h": need}, feeds, engine_of("serial")).to_bytes())
    return found


def _split(data: bytes) -> tuple[object, list[Record]]:
    """Header and records of a sound file."""
    at = len(_START)

    def field() -> bytes:
        nonlocal at
        (length,) = struct.unpack_from("<I", data, at)
        at += 4 + length
        return data[at - length : at]

    header = json.loads(field())
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    return header, [(field(), field(), field()) for _ in range(min(count, 64))]


def _joined(header: object, records: list[Record], chance: Random) -> bytes:
    def block(content: bytes) -> bytes:
        return struct.pack("<I", len(content)) + content

    count = len(records) if chance.random() < 0.97 else chance.choice((0, 1, 2**32 - 1))
    body = block(json.dumps(header).encode("utf-8", "replace")) + struct.pack("<I", count)
    return _signed(_START + body + b"".join(block(part) for record in records for part in record))


def _signed(content: bytes) -> bytes:
    return content + hashlib.blake2b(content, digest_size=16).digest()


def mutate(data: bytes, chance: Random) -> bytes:
    """A changed header, or a changed state."""
    if chance.random() < 0.1:
        return _signed(raw.mutate(data[:-16], chance))
    try:
        header, records = _split(data)
    except (struct.error, ValueError, RecursionError):
        return _signed(raw.mutate(data[:-16], chance))
    if chance.random() < 0.25 or not records:
        header = tree.mutate(header, chance, ["histogram", "samples", "minmax", "x", "moments"])
    else:
        at = chance.randrange(len(records))
        name, kind, state = records[at]
        if chance.random() < 0.1:
            kind = chance.choice(sorted(KINDS)).encode()
        elif chance.random() < 0.1:
            name = chance.choice((b"", b"x", b"\xff", raw.text(chance).encode(), records[0][0]))
        else:
            state = _change_state(state, chance)
        records[at] = (name, kind, state)
    made_now = _joined(header, records, chance)
    return made_now if len(made_now) <= raw.MOST_BYTES else data


def _change_state(state: bytes, chance: Random) -> bytes:
    """Numbers of 4 and 8 bytes, wherever they may lie."""
    if len(state) < 9 or chance.random() < 0.3:
        return raw.mutate(state, chance)
    changed = bytearray(state)
    at = chance.randrange(len(state) - 7)
    match chance.randrange(3):
        case 0:
            changed[at : at + 8] = struct.pack("<d", chance.choice(raw.FLOATS))
        case 1:
            changed[at : at + 8] = struct.pack("<q", chance.choice(raw.NUMBERS))
        case _:
            changed[at : at + 4] = struct.pack("<I", chance.choice(raw.NUMBERS) % (1 << 32))
    return bytes(changed)


_METHODS = (scheme.MinMax(), scheme.MinMax(average=True), scheme.MinMax(momentum=0.1),
            scheme.Percentile(99.0), scheme.Entropy(), scheme.MSE(), scheme.Distribution(),
            scheme.Auto())  # fmt: skip
_SCHEMES = [scheme.Scheme(qtype("uint8"), method=method) for method in _METHODS]


def one(data: bytes) -> None:
    """Read; what was read can be merged, gives ranges, and can be written again as it was."""
    path = guard.folder() / "a.stats"
    path.write_bytes(data)
    try:
        stats = saved.load(path)
        repr(stats)
        written = stats.to_bytes()
    except OctavoError:
        return
    try:
        again = saved.load(_written(written))
    except OctavoError as error:
        raise guard.FindingError("round trip", f"what was written is refused: {error}") from error
    if again.to_bytes() != written:
        raise guard.FindingError("round trip", "written statistics change when they are read")
    for tensor, wanted in zip(stats, _in_turn(data), strict=False):
        try:
            found = calibration.ranges(stats, {tensor: wanted})
        except OctavoError:
            continue
        _check(found)
    try:
        stats.merge(again)
        type(stats)(dict(stats), stats.samples).merge(type(stats)(dict(again), again.samples))
    except OctavoError:
        return


def _written(content: bytes) -> str:
    path = guard.folder() / "b.stats"
    path.write_bytes(content)
    return str(path)


def _in_turn(data: bytes) -> Iterator[scheme.Scheme]:
    """A method for each tensor: another one first for other data."""
    return itertools.islice(itertools.cycle(_SCHEMES), crc32(data) % len(_SCHEMES), None)


def _check(found: Mapping[str, Range]) -> None:
    """A range is finite, and goes upward."""
    for low, high, _ in found.values():
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise guard.FindingError("range", f"{low} … {high}")
