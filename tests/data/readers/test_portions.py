"""Every source gives any portion of its samples, and those that come from paths travel to other processes."""

from __future__ import annotations

import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

import octavo
from octavo.data.batches import Batched
from octavo.data.feeds import Feeds
from octavo.data.readers import source_of
from octavo.model.runtime.session import InputSpec

SPECS = [InputSpec("x", np.dtype(np.float32), ("batch", 3, 4, 4))]
COUNT = 7
ARRAY = np.arange(COUNT * 48, dtype=np.float32).reshape(COUNT, 3, 4, 4)


def npy(folder: Path) -> Any:
    np.save(folder / "x.npy", ARRAY)
    return folder / "x.npy"


def npz(folder: Path) -> Any:
    np.savez(folder / "x.npz", x=ARRAY)
    return folder / "x.npz"


def compressed_npz(folder: Path) -> Any:
    np.savez_compressed(folder / "x.npz", x=ARRAY)
    return folder / "x.npz"


def npz_folder(folder: Path) -> Any:
    """Files of one, five (a stack of feeds) and one."""
    np.savez(folder / "s1.npz", x=ARRAY[:1])
    np.save(folder / "s2.npy", ARRAY[1:6, None])
    np.savez_compressed(folder / "s10.npz", x=ARRAY[6:])
    return folder


def _content(index: int) -> bytes:
    stream = io.BytesIO()
    np.save(stream, ARRAY[index : index + 1])
    return stream.getvalue()


def zipped(folder: Path) -> Any:
    with zipfile.ZipFile(folder / "x.zip", "w") as archive:
        archive.writestr("read me.txt", "no data")
        for index in range(COUNT):
            archive.writestr(f"in/s{index}.npy", _content(index))
    return folder / "x.zip"


def _tar(path: Path, mode: Any) -> Path:
    with tarfile.open(path, mode) as archive:
        for index in range(COUNT):
            info = tarfile.TarInfo(f"s{index}.npy")
            info.size = len(_content(index))
            archive.addfile(info, io.BytesIO(_content(index)))
    return path


def tarred(folder: Path) -> Any:
    return _tar(folder / "x.tar", "w")


def tarred_and_zipped(folder: Path) -> Any:
    return _tar(folder / "x.tar.gz", "w:gz")


def bundle(folder: Path) -> Any:
    proto = onnx.numpy_helper.from_array(ARRAY[:, None], "samples")
    (folder / "x.pb").write_bytes(proto.SerializeToString())
    return folder / "x.pb"


def data_sets(folder: Path) -> Any:
    for index in range(COUNT):
        (folder / f"test_data_set_{index}").mkdir()
        proto = onnx.numpy_helper.from_array(ARRAY[index : index + 1], "x")
        (folder / f"test_data_set_{index}" / "input_0.pb").write_bytes(proto.SerializeToString())
    return folder


def images(folder: Path) -> Any:
    for index in range(COUNT):
        pixels = np.full((5, 6, 3), 30 * index, np.uint8)
        Image.fromarray(pixels).save(folder / f"p{index}.png")
    return octavo.images(folder, "unit")


def made_up(folder: Path) -> Any:
    return octavo.random_data(COUNT, seed=3)


def call(folder: Path) -> Any:
    return f"{__name__}:samples"


def samples() -> Any:
    yield from ({"x": ARRAY[index : index + 1]} for index in range(COUNT))


def listed(folder: Path) -> Any:
    return list(samples())


TRAVELLING: list[Callable[[Path], Any]] = [
    npy, npz, compressed_npz, npz_folder, zipped, tarred, tarred_and_zipped, bundle, data_sets, images,
    made_up, call, listed,
]  # fmt: skip


def _name(make: Callable[[Path], Any]) -> str:
    return make.__name__


@pytest.mark.parametrize("make", TRAVELLING, ids=_name)
def test_a_portion_is_what_a_slice_would_be_here_and_in_another_process(
    make: Callable[[Path], Any], tmp_path: Path
) -> None:
    source = source_of(make(tmp_path), SPECS)
    assert source.length == (None if make is call else COUNT)
    every = [sample["x"] for sample in source.portion()]
    assert len(every) == COUNT
    sent = pickle.loads(pickle.dumps(source))
    for first, stop in ((0, 3), (3, None), (2, 6), (6, 7), (5, 99), (7, None), (4, 4)):
        for one in (source, sent):
            got = [sample["x"] for sample in one.portion(first, stop)]
            assert len(got) == len(every[first:stop])
            assert all(np.array_equal(*pair) for pair in zip(got, every[first:stop], strict=True))


@pytest.mark.parametrize("make", [npy, npz, compressed_npz, npz_folder, zipped, tarred, tarred_and_zipped,
                                  bundle, data_sets, call, listed], ids=_name)  # fmt: skip
def test_samples_are_those_that_were_saved(make: Callable[[Path], Any], tmp_path: Path) -> None:
    found = Feeds(make(tmp_path), SPECS)
    assert np.array_equal(np.concatenate([feed["x"] for feed in found]), ARRAY)
    assert np.array_equal(np.concatenate([feed["x"] for feed in found.portion(2, 4)]), ARRAY[2:4])


@pytest.mark.parametrize("make", TRAVELLING, ids=_name)
def test_batches_join_samples(make: Callable[[Path], Any], tmp_path: Path) -> None:
    one_by_one = Feeds(make(tmp_path), SPECS)
    by_three = Feeds(Batched(make(tmp_path) if make is not data_sets else tmp_path, 3), SPECS)
    assert [feed["x"].shape[0] for feed in by_three] == [3, 3, 1]
    joined = np.concatenate([feed["x"] for feed in by_three])
    assert np.array_equal(joined, np.concatenate([feed["x"] for feed in one_by_one]))
    assert [feed["x"].shape[0] for feed in by_three.portion(1, 2)] == [3]


def test_a_limit_cuts_portions_too(tmp_path: Path) -> None:
    found = Feeds(npy(tmp_path), SPECS, limit=4)
    assert found.length == len(list(found)) == 4
    assert len(list(found.portion(2))) == len(list(found.portion(2, 9))) == 2
    assert not list(found.portion(4, 6))


def test_a_limit_counts_samples_also_in_batches(tmp_path: Path) -> None:
    found = Feeds(Batched(npy(tmp_path), 3), SPECS, limit=4)
    assert [feed["x"].shape[0] for feed in found] == [3, 1]
    assert found.length == 2
    assert len(list(Feeds(Batched(listed(tmp_path), 2), SPECS, limit=4))) == 2


def test_a_file_that_is_mapped_anew_gives_the_same(tmp_path: Path) -> None:
    array = np.arange(100, dtype=np.float32)[:, None, None, None] * np.ones((1, 3, 4, 4), np.float32)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", x=array)
    for name in ("x.npy", "x.npz"):
        for first in (0, 40):
            found = [feed["x"] for feed in Feeds(tmp_path / name, SPECS).portion(first)]
            assert np.array_equal(np.concatenate(found), array[first:])


def test_an_uncompressed_npz_is_mapped_and_not_read(tmp_path: Path) -> None:
    sample = next(source_of(npz(tmp_path), SPECS).portion(3))
    assert isinstance(sample["x"], np.memmap)
    np.savez(tmp_path / "f.npz", x=np.asfortranarray(ARRAY))
    assert np.array_equal(np.concatenate([f["x"] for f in Feeds(tmp_path / "f.npz", SPECS)]), ARRAY)
