"""Readers, iterators, loaders, datasets and functions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.feeding import feeds
from octavo.data import feeds as feeds_module
from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples
from octavo.data.readers import source_of
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

SPECS = [InputSpec("x", np.dtype(np.float32), ("batch", 2))]
TOKENS = [InputSpec(name, np.dtype(np.int64), ("batch", "length")) for name in ("ids", "mask")]


def sample(value: float) -> dict[str, Any]:
    return {"x": np.full((1, 2), value, np.float32)}


def numbers(found: Any) -> list[int]:
    return [int(one["x"][0, 0]) for one in found]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("os:system", "without arguments"),
        ("os:getcwd", "returned the text"),
        ("gc:freeze", "returned nothing"),
        ("sys:exc_info", "each sample"),
        ("os:abc", "did you mean|no function"),
    ],
)
def test_a_named_function_that_gives_no_samples_is_a_sentence(name: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        list(Feeds(name, SPECS))


class Reader:
    """The protocol of a well-known peer; its base class has methods that are not implemented."""

    def __init__(self, count: int = 5) -> None:
        self.end, self.at, self.asked = count, 0, 0

    def get_next(self) -> dict[str, Any] | None:
        self.asked += 1
        self.at += 1
        return sample(self.at - 1) if self.at <= self.end else None

    def set_range(self, start_index: int, end_index: int) -> None:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class Jumping(Reader):
    def set_range(self, start_index: int, end_index: int) -> None:
        self.at, self.end = start_index, end_index

    def __len__(self) -> int:
        return 5


def test_portions_of_a_reader_follow_each_other_without_a_rewind() -> None:
    reader = Reader()
    source = source_of(reader, SPECS)
    assert source.length is None
    assert numbers(source.portion(0, 2)) == [0, 1]
    assert reader.asked == 2
    assert numbers(source.portion(3, 4)) == [3]
    assert numbers(source.portion(4)) == [4]
    with pytest.raises(DataError, match="only once"):
        list(source.portion(0))


def test_a_reader_that_can_jump_does() -> None:
    reader = Jumping()
    source = source_of(reader, SPECS)
    assert source.length == 5
    assert numbers(source.portion(3)) == [3, 4]
    assert numbers(source.portion(1, 3)) == [1, 2]
    assert numbers(source.portion()) == [0, 1, 2, 3, 4]
    assert reader.asked == 2 + 1 + 2 + 5 + 1


def test_portions_of_an_iterator_follow_each_other() -> None:
    source = source_of((sample(i) for i in range(5)), SPECS)
    assert numbers(source.portion(0, 2)) == [0, 1]
    assert numbers(source.portion(2)) == [2, 3, 4]


def test_data_without_an_end_is_cut_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "MAX_UNCOUNTED", 10)

    def endless() -> Iterator[dict[str, Any]]:
        index = 0
        while True:
            yield sample(index)
            index += 1

    found = FingerprintedSamples(endless(), SPECS)
    assert len(list(found)) == 10
    assert "does not tell its length" in " ".join(found.notes)
    found = FingerprintedSamples(endless(), SPECS, limit=12)
    assert len(list(found)) == 12
    assert found.notes == ()


class Tensor:
    """What other frameworks hand out: it lies elsewhere and remembers its gradient until told otherwise."""

    def __init__(self, array: Any, steps: tuple[str, ...] = ()) -> None:
        self.array, self.steps = array, steps

    def detach(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "detach"))

    def cpu(self) -> Tensor:
        return Tensor(self.array, (*self.steps, "cpu"))

    def numpy(self) -> Any:
        if self.steps != ("detach", "cpu"):
            raise RuntimeError("it needs a gradient")
        return self.array


class Loader:
    """A loader of batches: images and labels."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(3):
            yield Tensor(np.full((4, 2), index, np.float32)), Tensor(np.zeros(4, np.int64))

    def __len__(self) -> int:
        return 3


def test_a_loader_of_tensors_and_labels() -> None:
    found = Feeds(Loader(), SPECS)
    assert len(found) == 3
    assert numbers(found) == numbers(found) == [0, 1, 2]
    (feed,) = feeds([{"x": Tensor(np.ones((1, 2), np.float32))}], SPECS)
    assert feed["x"].dtype == np.float32


class Dataset:
    """The ways of a Hugging Face dataset."""

    column_names: Any = ("ids", "mask", "label")
    features: Any = None

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"ids": [index, 1, 2], "mask": [1, 1, 1], "label": 0}

    def __len__(self) -> int:
        return 4


def test_rows_of_a_dataset_get_a_batch_axis_and_the_models_type() -> None:
    found = Feeds(Dataset(), TOKENS)
    assert len(found) == 4
    assert [feed["ids"].tolist() for feed in found.portion(2)] == [[[2, 1, 2]], [[3, 1, 2]]]
    assert {feed["mask"].dtype for feed in found} == {np.dtype(np.int64)}


class Streaming:
    """A dataset that is read as it comes and may not know its columns."""

    column_names: Any = None
    features: Any = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (Dataset()[index] for index in range(4))


def test_a_dataset_that_streams() -> None:
    found = Feeds(Streaming(), TOKENS)
    assert found.length is None
    assert [feed["ids"][0, 0] for feed in found] == [0, 1, 2, 3]
    assert [feed["ids"][0, 0] for feed in found.portion(1, 3)] == [1, 2]
    with pytest.raises(DataError, match="no column 'x'"):
        list(Feeds(Streaming(), SPECS))


def test_datasets_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="no column 'x'"):
        Feeds(Dataset(), SPECS)
    parts = Dataset()
    parts.column_names = {"train": ["ids"], "test": ["ids"]}
    with pytest.raises(DataError, match=r"dataset\['train'\]"):
        Feeds(parts, TOKENS)


def test_a_function_is_called_anew_for_each_pass() -> None:
    calls = []

    def make() -> Iterator[dict[str, Any]]:
        calls.append(1)
        yield from (sample(i) for i in range(3))

    found = Feeds(make, SPECS)
    assert numbers(found) == numbers(found) == [0, 1, 2]
    assert len(calls) == 2


def test_a_function_by_name_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "octavo_test_samples.py").write_text(
        "import numpy as np\n"
        "def make():\n    return [{'x': np.ones((1, 2), np.float32)}] * 3\n"
        "def path():\n    return 'a.npz'\n"
        "async def later():\n    return []\n"
        "def ends():\n    raise SystemExit(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    found = Feeds("octavo_test_samples:make", SPECS)
    assert len(found) == len(list(found)) == 3
    with pytest.raises(DataError, match="did you mean 'make'"):
        Feeds("octavo_test_samples:mak", SPECS)
    with pytest.raises(DataError, match="the text"):
        Feeds("octavo_test_samples:path", SPECS)
    with pytest.raises(DataError, match="asynchronous"):
        Feeds("octavo_test_samples:later", SPECS)
    with pytest.raises(DataError, match="failed: SystemExit: 3"):
        Feeds("octavo_test_samples:ends", SPECS)
    with pytest.raises(DataError, match="in the folder where octavo_absent lies"):
        Feeds("octavo_absent:make", SPECS)


def test_a_file_named_like_a_function_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("os:getcwd").write_text("")
    with pytest.raises(DataError, match="calibration data"):
        Feeds("os:getcwd", SPECS)
