"""Calibration data of every kind, and what is said when it does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest

from data.feeding import feeds
from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

Array = npt.NDArray[Any]
F32 = np.dtype(np.float32)
IMAGE = [InputSpec("x", F32, ("batch", 3, 4))]
FIXED = [InputSpec("x", F32, (2, 3, 4))]
TEXT = [
    InputSpec("ids", np.dtype(np.int64), ("batch", "length")),
    InputSpec("mask", np.dtype(np.int64), ("batch", "length")),
]


def image(n: int = 1, value: float = 0.0) -> Array:
    return np.full((n, 3, 4), value, np.float32)


def values(found: Iterator[dict[str, Array]] | Feeds) -> list[tuple[tuple[int, ...], float]]:
    return [(feed["x"].shape, float(feed["x"].flat[0])) for feed in found]


class Reader:
    """The protocol of a well-known peer."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.at = 0

    def get_next(self) -> dict[str, Array] | None:
        self.at += 1
        return {"x": image(value=self.at)} if self.at <= self.count else None


class RewindingReader(Reader):
    def rewind(self) -> None:
        self.at = 0


def test_a_list_can_be_gone_through_again() -> None:
    found = Feeds([{"x": image(value=i)} for i in range(3)], IMAGE)
    assert len(found) == found.length == 3
    assert values(found) == values(found) == [((1, 3, 4), i) for i in range(3)]


def test_limit() -> None:
    data = [{"x": image(value=i)} for i in range(3)]
    assert len(Feeds(data, IMAGE, limit=2)) == 2
    assert len(values(feeds(data, IMAGE, limit=2))) == 2
    assert len(values(feeds(iter(data), IMAGE, limit=2))) == 2
    assert len(values(feeds(Feeds(data, IMAGE), IMAGE, limit=1))) == 1
    with pytest.raises(DataError, match="limit of 0"):
        Feeds(data, IMAGE, limit=0)


def test_a_generator_can_be_gone_through_once() -> None:
    found = Feeds(({"x": image()} for _ in range(2)), IMAGE)
    assert found.length is None
    with pytest.raises(TypeError):
        len(found)
    assert len(values(found)) == 2
    with pytest.raises(DataError, match="only once"):
        values(found)


def test_readers() -> None:
    assert values(feeds(Reader(2), IMAGE)) == [((1, 3, 4), 1), ((1, 3, 4), 2)]
    found = Feeds(Reader(2), IMAGE)
    values(found)
    with pytest.raises(DataError, match=r"rewind\(\)"):
        values(found)
    again = Feeds(RewindingReader(2), IMAGE)
    assert values(again) == values(again)


def test_python_lists_are_converted() -> None:
    (feed,) = feeds([{"ids": [[1, 2]], "mask": [[1, 1]]}], TEXT)
    assert feed["ids"].dtype == np.int64
    (feed,) = feeds([{"x": [[[0] * 4] * 3]}], IMAGE)
    assert feed["x"].dtype == np.float32
    with pytest.raises(DataError, match="can't be turned into float32"):
        next(feeds([{"x": [[[0], [0, 1]]]}], IMAGE))


def test_other_byte_orders_are_converted() -> None:
    (feed,) = feeds([{"x": image(value=3).astype(">f4")}], IMAGE)
    assert feed["x"].dtype == F32
    assert feed["x"].flat[0] == 3


def test_a_scalar_input() -> None:
    spec = InputSpec("rate", np.dtype(np.int64), ())
    (feed,) = feeds([{"rate": 16000}], [spec])
    assert feed["rate"].shape == ()


def test_text_and_bfloat16_inputs() -> None:
    (feed,) = feeds([{"t": np.array(["a"])}], [InputSpec("t", np.dtype(np.object_), (None,))])
    assert feed["t"][0] == "a"
    with pytest.raises(DataError, match="takes text"):
        next(feeds([{"t": np.array([1])}], [InputSpec("t", np.dtype(np.object_), (None,))]))
    half = InputSpec("x", np.dtype(ml_dtypes.bfloat16), (None,))
    assert next(feeds([{"x": np.ones(2, ml_dtypes.bfloat16)}], [half]))["x"].size == 2
    with pytest.raises(DataError, match="NaN"):
        next(feeds([{"x": np.array([np.nan], ml_dtypes.bfloat16)}], [half]))


WRONG: dict[str, tuple[Any, str]] = {
    "double": ({"x": image().astype(np.float64)}, r"takes float32, and the array holds float64.*astype"),
    "bytes": ({"x": image().astype(np.uint8)}, r"takes float32, and the array holds uint8"),
    "objects": ({"x": np.array([[[object()]]])}, "Python objects"),
    "nan": ({"x": image(value=np.nan)}, r"Sample 1 .* input 'x': .* NaN"),
    "infinity": ({"x": image(value=-np.inf)}, "NaN or infinity"),
    "name": ({"X": image()}, r"'X', which is not an input.*"),
    "more": ({"x": image(), "y": image()}, "'y', which is not an input"),
    "missing": ({}, "lacks the input 'x'"),
    "rank": ({"x": image()[0]}, r"\[3, 4\] was given; add the batch dimension"),
    "size": (
        {"x": np.zeros((1, 4, 4), np.float32)},
        r"\[batch, 3, 4\], and \[1, 4, 4\] .* axis 1 must be 3",
    ),
    "set": ({1}, "is of type set; each sample must be a dict"),
    "text": ("x", "is of type str"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_sample_is_named(case: str) -> None:
    sample, message = WRONG[case]
    found = feeds([{"x": image()}, sample], IMAGE)
    next(found)
    with pytest.raises(DataError, match=message) as caught:
        next(found)
    assert "Sample 1" in str(caught.value)


def test_largest_finite_values_are_no_infinity() -> None:
    top = float(np.finfo(np.float32).max)
    assert values(feeds([{"x": image(value=top)}], IMAGE)) == [((1, 3, 4), top)]


@pytest.mark.parametrize("data", [[], iter(()), Reader(0)], ids=["list", "iterator", "reader"])
def test_no_samples_are_an_error(data: Any) -> None:
    with pytest.raises(DataError, match="sample"):
        list(feeds(data, IMAGE))


@pytest.mark.parametrize(
    ("data", "message"), [({"x": 1}, "one sample; put it into a list"), (3, "can't be of type int")]
)
def test_what_is_no_data_at_all(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        feeds(data, IMAGE)


def test_one_npy_file_holds_samples_along_its_first_axis(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.concatenate([image(value=i) for i in range(4)]))
    found = Feeds(tmp_path / "x.npy", IMAGE)
    assert len(found) == 4
    assert values(found) == values(found) == [((1, 3, 4), i) for i in range(4)]
    assert values(feeds(str(tmp_path / "x.npy"), FIXED)) == [((2, 3, 4), 0), ((2, 3, 4), 2)]
    np.save(tmp_path / "x.npy", image(3))
    with pytest.raises(DataError, match="batches of 2, and 3 samples"):
        feeds(tmp_path / "x.npy", FIXED)


def test_one_axis_more_or_less(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.stack([image(2, value=i) for i in range(3)]))
    assert values(feeds(tmp_path / "x.npy", IMAGE)) == [((2, 3, 4), i) for i in range(3)]
    np.save(tmp_path / "x.npy", image(value=7)[0])
    assert values(feeds(tmp_path / "x.npy", IMAGE)) == [((1, 3, 4), 7)]
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    with pytest.raises(DataError, match="has 3 dimensions"):
        feeds(tmp_path / "x.npy", IMAGE)


def test_an_array_is_taken_like_a_file() -> None:
    assert values(feeds(image(2, value=1), IMAGE)) == [((1, 3, 4), 1)] * 2
    with pytest.raises(DataError, match="2 inputs"):
        feeds(image(), TEXT)


def test_one_npz_file(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, ids=np.arange(6).reshape(3, 2), mask=np.ones((3, 2), np.int64))
    assert [feed["ids"].tolist() for feed in feeds(path, TEXT)] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    np.savez(path, ids=np.arange(6).reshape(3, 2), mask=np.ones((2, 2), np.int64))
    with pytest.raises(DataError, match="different numbers of samples"):
        feeds(path, TEXT)
    np.savez(path, ids=np.arange(6).reshape(3, 2))
    with pytest.raises(DataError, match="lacks the input 'mask'"):
        feeds(path, TEXT)
    np.savez(path, ids=np.arange(6).reshape(3, 2), masks=np.ones((2, 2)))
    with pytest.raises(DataError, match="did you mean 'mask'"):
        feeds(path, TEXT)


def test_a_scalar_in_a_file_serves_all_samples(tmp_path: Path) -> None:
    specs = [*IMAGE, InputSpec("rate", np.dtype(np.int64), ())]
    np.savez(tmp_path / "d.npz", x=image(2), rate=np.int64(16))
    assert [int(feed["rate"]) for feed in feeds(tmp_path / "d.npz", specs)] == [16, 16]


def test_a_folder_of_files_in_natural_order(tmp_path: Path) -> None:
    for i in (10, 9, 1):
        np.savez(tmp_path / f"s{i}.npz", x=image(1 + i, value=i))
    np.save(tmp_path / "t0.npy", image(value=3)[0])
    (tmp_path / "notes.txt").write_text("no data")
    found = Feeds(tmp_path, IMAGE)
    expected = [
        ((1, 3, 4), value) for value, count in ((1, 2), (9, 10), (10, 11), (3, 1)) for _ in range(count)
    ]
    assert values(found) == values(found) == expected


def test_samples_are_counted_alike_in_one_file_and_in_several(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    np.savez(tmp_path / "two" / "a.npz", x=image(32))
    np.savez(tmp_path / "two" / "b.npz", x=image(32))
    np.savez(tmp_path / "one.npz", x=image(64))
    np.savez(tmp_path / "single.npz", x=image(1))
    for name, count in (("two", 64), ("one.npz", 64), ("single.npz", 1)):
        found = FingerprintedSamples(tmp_path / name, IMAGE)
        assert len(found) == count
        assert found.has(32) is (count == 64)
    assert len(Feeds(tmp_path / "two", IMAGE, limit=40)) == 40


def test_a_feed_counts_as_many_samples_as_its_batch() -> None:
    def found(shape: tuple[str | int, ...], feed: Array, feeds: int) -> FingerprintedSamples:
        specs = [InputSpec("x", np.dtype(np.float32), shape)]
        return FingerprintedSamples([{"x": feed}] * feeds, specs)

    batch = np.zeros((8, 4), np.float32)
    assert found(("batch", 4), batch, 6).has(48)
    assert not found(("batch", 4), batch, 6).has(49)
    assert not found(("sequence", 4), batch, 6).has(7)
    assert not found((8, 4), batch, 6).has(7)


@pytest.mark.parametrize("shape", [("sequence", 4), ("T_frames", 4), ("samples",)])
def test_a_file_of_a_folder_is_one_feed_where_its_first_axis_is_not_a_batch(
    shape: tuple[str | int, ...], tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((7, 4)[: len(shape)], np.float32))
    (feed,) = Feeds(tmp_path, [InputSpec("x", np.dtype(np.float32), shape)])
    assert len(feed["x"]) == 7


def test_files_of_a_folder_are_split_where_the_batch_is_fixed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=image(4))
    assert len(values(feeds(tmp_path, FIXED))) == 2


def test_a_folder_of_test_data_sets(tmp_path: Path) -> None:
    for i in (0, 2, 10):
        folder = tmp_path / f"test_data_set_{i}"
        folder.mkdir()
        for number, name in enumerate(("mask", "ids")):  # names count, not numbers
            proto = onnx.numpy_helper.from_array(np.full((1, 2), i * number, np.int64), name)
            (folder / f"input_{number}.pb").write_bytes(proto.SerializeToString())
    found = Feeds(tmp_path, TEXT)
    assert len(found) == 3
    assert [int(feed["ids"][0, 0]) for feed in found] == [0, 2, 10]
    assert len(list(feeds(tmp_path / "test_data_set_2", TEXT))) == 1


def test_tensors_of_a_test_data_set_without_names_go_by_number(tmp_path: Path) -> None:
    proto = onnx.numpy_helper.from_array(image(value=2), "")
    (tmp_path / "input_0.pb").write_bytes(proto.SerializeToString())
    assert values(feeds(tmp_path, IMAGE)) == [((1, 3, 4), 2)]
    (tmp_path / "input_1.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(DataError, match=r"input_1.pb is tensor"):
        list(feeds(tmp_path, IMAGE))
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(DataError, match="can't be read as a tensor"):
        list(feeds(tmp_path, IMAGE))


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([{"a": 1}], dtype=object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError, match="Python objects are refused"):
            feeds(tmp_path / name, IMAGE)


def test_paths_without_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no \.npz"):
        feeds(tmp_path, IMAGE)
    with pytest.raises(DataError, match="There is no calibration data"):
        feeds(tmp_path / "absent", IMAGE)
    (tmp_path / "x.csv").write_text("1")
    with pytest.raises(DataError, match="tokenizer"):
        feeds(tmp_path / "x.csv", IMAGE)
    (tmp_path / "x.npz").write_bytes(b"PK broken")
    with pytest.raises(DataError, match="can't be read"):
        feeds(tmp_path / "x.npz", IMAGE)
    np.save(tmp_path / "y.npy", image())
    with pytest.raises(DataError, match="2 inputs"):
        feeds(tmp_path / "y.npy", TEXT)
