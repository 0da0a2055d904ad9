"""Calibration tables of other tools: FlatBuffers, JSON, text, and the JSON cache."""

from __future__ import annotations

import struct
from random import Random

from fuzzing import guard
from fuzzing.mutations import raw, tree
from octavo.calibration import tables
from octavo.calibration.tables import stock_cache
from octavo.core.stats import Range
from octavo.errors import OctavoError

SCOPE = ("calibration/tables",)
SECONDS = 10.0

_WORDS = ("CLS", "TensorsData", "TensorData", "numpy.array", "data", "dtype", "lowest",
          "highest", "hist", "hist_edges", "bins", "avg", "std", "float32", "float64", "int64",
          "object", "calibration_method", "value", "CalibrationMethod",
          "CalibrationMethod.MinMax", "CalibrationMethod.Entropy", "smooth_quant")  # fmt: skip
_TOKENS = [
    b" ",
    b"\n",
    b"\r",
    b"\x85",
    b"\xe2\x80\xa8",
    b"nan",
    b"inf",
    b"1e999",
    b"-1",
    b"_",
    b"0x1p3",
    b"\x1c",
]


def seeds() -> list[bytes]:
    """One of each format."""
    found = {"x": Range(-1.0, 2.0), "a/b": Range(0.0, 3.5), "long name": Range(-7.25, 0.0)}
    spread = {name: Range(low, high, 0.5) for name, (low, high, _) in found.items()}
    array = b'{"data": [-1.0, -2.5], "dtype": "float32", "CLS": "numpy.array"}'
    method = b'{"CLS": "CalibrationMethod", "value": "CalibrationMethod.Percentile"}'
    entry = b'{"lowest": ' + array + b', "highest": 2.0, "CLS": "TensorData"}'
    cache = b'{"CLS": "TensorsData", "data": {"x": ' + entry + b'}, "calibration_method": ' + method + b"}"
    return [
        *(entry.dump(found) for entry in tables.FORMATS.values()),
        b'{"x": [-1.0, 2.0], "y": [0, 3]}',
        stock_cache.dump(stock_cache.from_ranges(spread)),
        cache,
    ]


def mutate(data: bytes, chance: Random) -> bytes:
    """By format: trees, offsets, lines."""
    if data[:1] in b"{[":
        return tree.mutate_json(data, chance, _WORDS)
    if b"\0" not in data:
        return raw.mutate(data, chance, _TOKENS)
    if chance.random() < 0.5 or len(data) < 8:
        return raw.mutate(data, chance)
    changed = bytearray(data)
    at = 4 * chance.randrange(len(data) // 4)
    number = chance.choice((*raw.NUMBERS, *range(0, 200, 2)))
    changed[at : at + 4] = struct.pack("<I", number % (1 << 32))
    return bytes(changed)


def one(data: bytes) -> None:
    """Read in every format; what was read is written and read again in the same."""
    path = guard.folder() / "table"
    path.write_bytes(data)
    for name in tables.FORMATS:
        try:
            found = tables.load(path, name)
        except OctavoError:
            continue
        _round_trip(name, found)
    try:
        cache = stock_cache.load(path)
        stock_cache.ranges(cache)
    except OctavoError:
        return
    stock_cache.parse(stock_cache.dump(cache))


def _round_trip(name: str, found: dict[str, Range]) -> None:
    path = guard.folder() / "again"
    try:
        tables.as_stats(found)
        tables.save(found, path, name)
    except OctavoError:
        return
    if set(tables.load(path, name)) != set(found):
        raise guard.FindingError("round trip", f"a table in {name} has other tensors when it is read")
