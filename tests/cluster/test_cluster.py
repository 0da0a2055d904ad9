"""Calibration, evaluation and a search on a Ray cluster of three nodes, with something killed: the same bits.

Not a part of ``make test``: ``make test-ray`` installs Ray and sets ``OCTAVO_CLUSTER``. It takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    not os.environ.get("OCTAVO_CLUSTER") or importlib.util.find_spec("ray") is None,
    reason="takes minutes, and needs Ray: 'make test-ray' runs it",
)
SAMPLES = 90
FULL = "calibration, the disk full"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``session.py`` saw."""
    folder = tmp_path_factory.mktemp("cluster")
    tests = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "cluster.session", str(folder)],
        cwd=tests,
        env={**os.environ, "PYTHONPATH": str(tests)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(done.stdout[-8000:])
    assert done.returncode == 0, done.stdout[-8000:]
    results: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return results


def test_whatever_dies_the_bits_are_those_of_one_process(found: dict[str, Any]) -> None:
    assert len([name for name in found if "disk" not in name]) == 11
    assert not [name for name, one in found.items() if not one["same bits"]]


def test_every_sample_is_read(found: dict[str, Any]) -> None:
    """Of a search the driver holds some back."""
    read = {one["samples"] for name, one in found.items() if not name.startswith("search")}
    assert read == {SAMPLES}


def test_a_full_disk_ends_in_a_sentence_and_the_run_goes_on_when_there_is_room(found: dict[str, Any]) -> None:
    if FULL not in found:
        pytest.skip("a small file system can be mounted by root on Linux alone")
    assert found[FULL]["ended with a sentence"]
    assert not found[FULL]["left"]
    assert found[FULL]["same bits"]


def test_without_a_fault_no_sample_is_read_twice(found: dict[str, Any]) -> None:
    assert found["calibration"]["read again"] == 0


def test_a_driver_that_is_started_again_goes_on_from_its_checkpoint(found: dict[str, Any]) -> None:
    assert found["calibration, the driver killed and started again"]["read again"] < 40
