"""Tables from untrusted files: whatever is wrong is a TableError, and nothing of the file is used."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.calibration import tables
from octavo.calibration.tables import stock_cache, tensorrt_table, text_table
from octavo.core.stats import Range
from octavo.errors import TableError

GOOD = tensorrt_table.dump({"a": Range(-1.0, 1.0), "b": Range(0.0, 2.0)})


@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_changed_flatbuffer_is_read_or_refused(at: int, new: bytes) -> None:
    try:
        found = tensorrt_table.parse(GOOD[:at] + new + GOOD[at + len(new) :])
    except TableError:
        return
    assert all(r.high >= 0 for r in found.values())


@pytest.mark.parametrize("size", range(0, len(GOOD), 3))
def test_cut_flatbuffer_is_refused(size: int) -> None:
    with pytest.raises(TableError):
        tensorrt_table.parse(GOOD[:size])


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_never_do_worse_than_a_table_error(data: bytes) -> None:
    for entry in tables.FORMATS.values():
        try:
            entry.parse(data)
        except TableError:
            continue


def test_vector_that_claims_more_than_the_file_holds_is_refused() -> None:
    data = bytearray(GOOD)
    assert struct.unpack_from("<I", data, 20) == (2,)
    struct.pack_into("<I", data, 20, 2**31)
    with pytest.raises(TableError, match="runs past the end"):
        tensorrt_table.parse(bytes(data))


def test_entries_that_share_a_key_are_refused() -> None:
    twice = GOOD.replace(b"\x01\x00\x00\x00b", b"\x01\x00\x00\x00a")
    with pytest.raises(TableError, match="twice"):
        tensorrt_table.parse(twice)


@pytest.mark.parametrize("value", [b"nan", b"inf", b"-1.", b"abc"])
def test_value_that_is_no_magnitude_is_refused(value: bytes) -> None:
    data = GOOD.replace(b"2.0", value[:3])
    with pytest.raises(TableError, match=r"number|magnitude"):
        tensorrt_table.parse(data)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a 1.0\na 2.0\n", "twice"),
        (b"a\n", "Line 1"),
        (b"a one\n", "a number"),
        (b"a nan\n", "finite"),
        (b"\xff\xfe 1\n", "not text"),
        (b" 1.0\n", "Line 1"),
    ],
)
def test_text_table_that_is_wrong_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(TableError, match=words):
        text_table.parse(content)


def _cache(entry: object, **more: object) -> bytes:
    content = {"CLS": "TensorsData", "data": {"t": entry}, "calibration_method": {"value": "MinMax"}, **more}
    return json.dumps(content).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[1]", "TensorsData is missing"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (_cache({"lowest": 1.0, "highest": 0.0}), "larger to the smaller"),
        (_cache({"lowest": 1e300, "highest": 1e301}), "not finite"),
        (_cache({"lowest": "1"}), "a number"),
        (_cache({"loudest": 1.0}), "unknown field"),
        (_cache(3), "not an object"),
        (_cache({"lowest": {"CLS": "numpy.array", "dtype": "object", "data": [1]}}), "no readable array"),
        (
            _cache({"lowest": {"CLS": "numpy.array", "dtype": "float32", "data": [[1], [1, 2]]}}),
            "can't be read",
        ),
        (_cache({"lowest": 0.0}, smooth_quant="yes"), "wrong kind"),
        (_cache({}, calibration_method={"value": "Magic"}), "calibration method"),
    ],
)
def test_cache_that_is_wrong_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(TableError, match=words):
        stock_cache.parse(content)


@pytest.mark.parametrize(
    "content", [b"[]", b'{"a": [1]}', b'{"a": [2, 1]}', b'{"a": [true, 1]}', b'{"": [0, 1]}']
)
def test_plain_json_table_that_is_wrong_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(TableError, match=r"t\.json"):
        tables.load(tmp_path / "t.json")


def test_missing_table_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="does not exist"):
        tables.load(tmp_path / "none.json")
    with pytest.raises(TableError, match="can't be read"):
        stock_cache.load(tmp_path / "none.json")
