"""The three formats: exact bytes, round trips, files that appear as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo.calibration import tables
from octavo.calibration.tables import stock_cache, tensorrt_table, text_table
from octavo.core.stats import Range
from octavo.errors import OutputError, TableError

RANGES = {"z": Range(-5.0, 1.0), "b": Range(0.0, 0.10000000149011612)}


def test_text_table_is_sorted_lines_of_name_and_largest_magnitude() -> None:
    assert text_table.dump(RANGES) == b"b 0.10000000149011612\nz 5.0\n"


def test_flatbuffer_has_the_golden_bytes() -> None:
    golden = (
        b"\x0c\x00\x00\x00\x00\x00"  # the root table is at 12
        b"\x06\x00\x08\x00\x04\x00"  # its vtable: slot 0 at 4
        b"\x06\x00\x00\x00\x04\x00\x00\x00"  # the table: vtable 6 before it, the vector 4 behind
        b"\x02\x00\x00\x00\x08\x00\x00\x00\x28\x00\x00\x00"  # two entries, the last key first
        b"\xe4\xff\xff\xff\x08\x00\x00\x00\x0c\x00\x00\x00"  # z: shares the vtable of b, which lies behind
        b"\x03\x00\x00\x005.0\x00\x01\x00\x00\x00z\x00\x00\x00"
        b"\x08\x00\x0c\x00\x08\x00\x04\x00"  # the vtable of the entries: key at 8, value at 4
        b"\x08\x00\x00\x00\x08\x00\x00\x00\x1c\x00\x00\x00"
        b"\x13\x00\x00\x000.10000000149011612\x00\x01\x00\x00\x00b\x00\x00\x00"
    )
    assert tensorrt_table.dump(RANGES) == golden


def test_json_table_has_the_golden_bytes() -> None:
    golden = (
        b'{"CLS": "TensorsData", "data": {"z": {"lowest": -5.0, "highest": 1.0, "CLS": "TensorData"}, '
        b'"b": {"lowest": 0.0, "highest": 0.10000000149011612, "CLS": "TensorData"}}, '
        b'"calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}}'
    )
    assert tables.FORMATS["json"].dump(RANGES) == golden


@pytest.mark.parametrize("name", ["calibration.flatbuffers", "calibration.cache", "other.txt"])
def test_tables_of_magnitudes_come_back_as_symmetric_ranges(tmp_path: Path, name: str) -> None:
    tables.save(RANGES, tmp_path / name)
    top = 0.10000000149011612
    assert tables.load(tmp_path / name) == {"z": Range(-5.0, 5.0), "b": Range(-top, top)}


def test_json_table_comes_back_with_both_ends_and_the_spread(tmp_path: Path) -> None:
    ranges = {**RANGES, "s": Range(-1.0, 2.0, 0.5)}
    tables.save(ranges, tmp_path / "t.json")
    found = tables.load(tmp_path / "t.json")
    assert found["z"] == RANGES["z"]
    assert found["s"] == ranges["s"]


def test_plain_dictionary_of_ranges_is_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"a": [-1, 2.5]}')
    assert tables.load(tmp_path / "t.json") == {"a": Range(-1.0, 2.5)}


def test_names_with_spaces_and_other_alphabets_survive_every_format(tmp_path: Path) -> None:
    ranges = {"a b/c:0": Range(-2.0, 2.0), "Größe": Range(-1.0, 1.0)}
    for path in tables.save_all(ranges, tmp_path):
        assert tables.load(path) == ranges
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "calibration.cache",
        "calibration.flatbuffers",
        "calibration.json",
    ]


def test_empty_table_is_a_table(tmp_path: Path) -> None:
    for path in tables.save_all({}, tmp_path):
        assert tables.load(path) == {}


def test_format_can_be_named_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    tables.save(RANGES, tmp_path / "table", "text")
    assert set(tables.load(tmp_path / "table", "text")) == set(RANGES)
    with pytest.raises(TableError, match=r"formats are flatbuffers \(.flatbuffers\), json"):
        tables.load(tmp_path / "table")


def test_failed_write_leaves_the_old_table(tmp_path: Path) -> None:
    tables.save(RANGES, tmp_path / "t.json")
    before = (tmp_path / "t.json").read_bytes()
    with pytest.raises(TableError, match="not finite"):
        tables.save({"a": Range(0.0, float("nan"))}, tmp_path / "t.json")
    with pytest.raises(OutputError, match="is a folder"):
        tables.save(RANGES, _folder(tmp_path / "f.json"))
    assert (tmp_path / "t.json").read_bytes() == before
    assert not list(tmp_path.glob(".octavo*"))


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_line_break_in_a_name_is_refused_in_text() -> None:
    with pytest.raises(TableError, match="breaks a line"):
        text_table.dump({"a\nb": Range(0.0, 1.0)})


def test_stock_cache_keeps_arrays_their_types_and_the_flag(tmp_path: Path) -> None:
    entry = {"lowest": np.array([1, 2], np.float32), "highest": np.array([3, 4], np.float16), "bins": 7}
    cache = stock_cache.Cache("Percentile", {"t": entry}, True)
    found = stock_cache.load(stock_cache.save(cache, tmp_path / "c.json"))
    assert (found.method, found.smooth_quant) == ("Percentile", True)
    assert found.data["t"]["highest"].dtype == np.float16
    assert found.data["t"]["lowest"].tolist() == [1, 2]
    assert found.data["t"]["bins"] == 7
    assert json.loads((tmp_path / "c.json").read_text())["data"]["t"]["lowest"] == {
        "data": [1.0, 2.0],
        "dtype": "float32",
        "CLS": "numpy.array",
    }
    assert stock_cache.ranges(found) == {"t": Range(1.0, 4.0)}


def test_cache_without_the_flag_counts_as_false() -> None:
    assert stock_cache.parse(tables.FORMATS["json"].dump(RANGES)).smooth_quant is False


@pytest.mark.peer
def test_bytes_equal_those_of_stock_where_the_largest_value_is_the_largest_magnitude(tmp_path: Path) -> None:
    stock = pytest.importorskip("onnxruntime.quantization", exc_type=ImportError)
    rng = np.random.default_rng(0)
    ranges = {
        f"tensor/{i}": Range(float(np.float32(-rng.random())), float(np.float32(1 + rng.random())))
        for i in range(50)
    }
    data = stock.TensorsData(
        stock.CalibrationMethod.MinMax,
        {n: (np.float32(r.low), np.float32(r.high)) for n, r in ranges.items()},
    )
    theirs, ours = tmp_path / "stock", tmp_path / "octavo"
    theirs.mkdir(), ours.mkdir()
    stock.write_calibration_table(data, str(theirs))
    for path in tables.save_all(ranges, ours):
        assert path.read_bytes() == (theirs / path.name).read_bytes()
    stock.save_tensors_data(data, theirs / "cache.json")
    cache = stock_cache.from_ranges(ranges)
    saved = stock_cache.save(stock_cache.Cache(cache.method, cache.data, False), ours / "cache.json")
    assert saved.read_bytes() == (theirs / "cache.json").read_bytes()
    assert stock_cache.ranges(stock_cache.load(theirs / "cache.json")) == ranges
