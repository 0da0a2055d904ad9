"""Standard streams that are closed or full, a working folder that is gone: as daemons and CI leave them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hostile.models import feeds, layer

QUANTIZE = "quantize m.onnx -o q.onnx --data c.npz --plain --threads 1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(layer(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.concatenate([one["x"] for one in feeds(4)]))
    return tmp_path


def run(words: str, streams: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line with the shell's redirections."""
    line = f"{shlex.quote(sys.executable)} -m octavo {words} {streams}"
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("streams", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("way", ["", "--engine processes --workers 2"], ids=["here", "processes"])
def test_a_closed_stream_ends_no_run_and_nothing_is_printed_into_a_file(
    streams: str, way: str, folder: Path
) -> None:
    found = run(f"{QUANTIZE} {way}", streams, folder)
    assert found.returncode == 0, found.stderr
    onnx.checker.check_model(folder / "q.onnx", full_check=True)
    assert sorted(path.name for path in folder.iterdir()) == ["c.npz", "m.onnx", "q.onnx"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", ["plan m.onnx", "plan m.onnx --json", QUANTIZE])
def test_an_answer_that_finds_no_room_is_a_sentence(words: str, folder: Path) -> None:
    found = run(words, ">/dev/full", folder)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].endswith("files that were written stay.")
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_log_on_a_full_disk_ends_no_run(folder: Path) -> None:
    assert run("quantize m.onnx -o q.onnx", "2>/dev/full", folder).returncode == 0
    assert run("plan nowhere.onnx", "2>/dev/full", folder).returncode == 1


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a folder in use can't be removed")
def test_a_working_folder_that_is_gone_is_a_sentence(folder: Path) -> None:
    (folder / "gone").mkdir()
    line = (
        f"rmdir ../gone; {shlex.quote(sys.executable)} -m octavo quantize {folder}/m.onnx -o q.onnx --plain"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    found = subprocess.run(
        line, shell=True, cwd=folder / "gone", capture_output=True, text=True, check=False, env=environment
    )
    assert found.returncode == 1
    assert "The working folder was removed" in found.stderr.splitlines()[-1]


@pytest.mark.skipif(sys.platform != "linux", reason="needs limits of processes")
def test_a_limit_on_file_sizes_names_the_output(folder: Path) -> None:
    limit = "import resource as r, os, sys; r.setrlimit(r.RLIMIT_FSIZE, (0, 0)); "
    limit += f"os.execv(sys.executable, [sys.executable, '-m', 'octavo', *{QUANTIZE.split()!r}])"
    found = subprocess.run(
        [sys.executable, "-c", limit],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert f"{folder}/q.onnx can't be written" in found.stderr
