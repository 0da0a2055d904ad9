"""Files that are wrong, and what is said about them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from data.feeding import feeds
from octavo.data.feeds import Feeds
from octavo.data.readers import archives, numpy_files
from octavo.errors import DataError
from octavo.model.runtime.session import InputSpec

SPECS = [InputSpec("x", np.dtype(np.float32), ("batch", 3))]
TWO = [*SPECS, InputSpec("y", np.dtype(np.float32), ("batch", 3))]


def test_the_file_of_a_wrong_sample_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a0.npy", np.zeros((1, 3), np.float32))
    np.save(tmp_path / "a1.npy", np.full((1, 3), np.nan, np.float32))
    with pytest.raises(DataError, match=r"Sample 1 .*a1\.npy\), input 'x': .* NaN"):
        list(feeds(tmp_path, SPECS))
    np.save(tmp_path / "a1.npy", np.zeros((1, 3)))
    with pytest.raises(DataError, match=r"a1\.npy.* takes float32, and the array holds float64"):
        list(feeds(tmp_path, SPECS))


def test_a_file_that_may_not_be_read_is_told_why() -> None:
    error = PermissionError(13, "Permission denied", "a.npz")
    assert str(numpy_files._unreadable(Path("a.npz"), error)) == "a.npz can't be read: Permission denied."


def test_objects_in_archives_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.npy", stream.getvalue())
    with pytest.raises(DataError, match=r"x\.zip/a\.npy .*Python objects are refused"):
        Feeds(tmp_path / "x.zip", SPECS)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz", "x.tgz"])
def test_archives_that_are_none_or_empty(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(DataError, match="can't be read as an archive"):
        Feeds(tmp_path / name, SPECS)
    if name == "x.zip":
        zipfile.ZipFile(tmp_path / name, "w").close()
    else:
        tarfile.open(tmp_path / name, "w" if name == "x.tar" else "w:gz").close()
    with pytest.raises(DataError, match=r"holds no \.npy"):
        Feeds(tmp_path / name, SPECS)


def test_a_file_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 100)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", bytes(10_000))
    with pytest.raises(DataError, match="unpack the archive"):
        Feeds(tmp_path / "x.zip", SPECS)


def test_names_that_lead_out_of_an_archive_lead_nowhere(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.ones((1, 3), np.float32))
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "x.tar", "w") as archive:
        info = tarfile.TarInfo("../../evil.npy")
        info.size = len(stream.getvalue())
        archive.addfile(info, io.BytesIO(stream.getvalue()))
        link = tarfile.TarInfo("link.npy")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert len(list(feeds(tmp_path / "in" / "x.tar", SPECS))) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["in", "x.tar"]


def test_a_bundle_holds_samples_along_its_first_axis(tmp_path: Path) -> None:
    path = tmp_path / "set.pb"
    for array in (np.ones((4, 3), np.float32), np.ones((4, 1, 3), np.float32)):
        path.write_bytes(onnx.numpy_helper.from_array(array, "images").SerializeToString())
        found = Feeds(path, SPECS)
        assert len(found) == 4
        assert {feed["x"].shape for feed in found} == {(1, 3)}
    with pytest.raises(DataError, match="2 inputs"):
        Feeds(path, TWO)
    path.write_bytes(onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "x").SerializeToString())
    with pytest.raises(DataError, match="lacks the input 'y'"):
        Feeds(path, TWO)


def test_tensors_that_point_elsewhere_or_are_none_are_refused(tmp_path: Path) -> None:
    proto = onnx.TensorProto(data_type=1, dims=[1, 3], data_location=onnx.TensorProto.EXTERNAL)
    proto.external_data.add(key="location", value="/etc/passwd")
    (tmp_path / "x.pb").write_bytes(proto.SerializeToString())
    with pytest.raises(DataError, match="keeps its values in another file"):
        Feeds(tmp_path / "x.pb", SPECS)
    for content in (b"", b"\xff\xff\xff"):
        (tmp_path / "x.pb").write_bytes(content)
        with pytest.raises(DataError, match="can't be read as a tensor"):
            Feeds(tmp_path / "x.pb", SPECS)


def test_a_text_needs_a_tokenizer_and_a_folder_samples(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(DataError, match="need a tokenizer"):
        Feeds(tmp_path / "a.txt", SPECS)
    with pytest.raises(DataError, match="test_data_set"):
        Feeds(tmp_path, SPECS)
