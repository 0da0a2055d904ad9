"""Temporary folders of runs that were killed: the next run clears them away, and nothing else."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

import octavo
from hostile.models import feeds, layer
from octavo.core import leftovers, scratch

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only there can leftovers be told from others' files"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of its own."""
    made = tmp_path / "tmp"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def _killed(count: int) -> int:
    """A process that makes folders with content and is killed with them; its number, which is free again."""
    child = os.fork()
    if child == 0:
        for _ in range(count):
            inside = Path(scratch.folder().name)  # no block: nobody removes it
            inside.mkdir(exist_ok=True)
            (inside / "below").mkdir()
            (inside / "below" / "model.onnx").write_bytes(b"rest")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return child


def test_a_later_run_clears_what_a_killed_one_left(place: Path, tmp_path: Path) -> None:
    made = scratch.lasting_folder()
    Path(made).rmdir()
    dead = _killed(1)
    (place / f"octavo-{leftovers.system()}-{dead}-abcdefgh").mkdir()
    scratch._swept.clear()  # as in a process that has just started
    octavo.quantize(layer(), feeds(), output=tmp_path / "m.onnx", threads=1, effort="plain")
    assert list(place.iterdir()) == []


def test_only_folders_of_dead_processes_of_this_user_and_system_are_cleared(place: Path) -> None:
    dead, system = _killed(0), leftovers.system()
    precious = place / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("years")
    kept = [
        f"octavo-{system}-{os.getpid()}-abcdefgh",  # alive
        f"octavo-{system}-1-abcdefgh",
        f"octavo-deadbeef-{dead}-abcdefgh",  # another machine, container or boot
        f"octavo-00000000-{dead}-abcdefgh",
        f"octavo-{system}-{dead}-abc",  # not of our form
        f"octavo-{system}-{dead}-abcdefgh.d",
        f"octavo-{system}-{'9' * 11}-abcdefgh",
        "octavo-abcdefgh",
    ]
    for name in kept:
        (place / name).mkdir()
    (place / f"octavo-{system}-{dead}-aaaaaaaa").symlink_to(precious)
    (place / f"octavo-{system}-{dead}-bbbbbbbb").write_text("a file")
    gone = place / f"octavo-{system}-{dead}-cccccccc"
    gone.mkdir()
    (gone / "link").symlink_to(precious)
    foreign = place / f"octavo-{system}-{dead}-dddddddd"
    if os.geteuid() == 0:
        foreign.mkdir()
        os.chown(foreign, 65534, 65534)
    before = {path.name for path in place.iterdir()}
    scratch.sweep(str(place))
    assert before - {path.name for path in place.iterdir()} == {gone.name}
    assert (precious / "thesis").read_text() == "years"


def test_two_that_clear_at_once_do_not_mind_each_other(place: Path) -> None:
    _killed(40)
    assert len(list(place.iterdir())) == 40
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                scratch.sweep(str(place))
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    scratch.sweep(str(place))
    assert list(place.iterdir()) == []


def test_a_folder_of_ours_goes_with_its_block(place: Path) -> None:
    with scratch.folder() as name:
        assert scratch._OURS.fullmatch(Path(name).name)
        assert Path(name).stat().st_mode & 0o777 == 0o700
    assert list(place.iterdir()) == []
