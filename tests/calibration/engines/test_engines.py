from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import conv_net

import octavo
from calibration.engines.jobs import Deadly, Packing, Refusing, Square
from octavo.calibration import saved
from octavo.calibration.engines import engine_of, processes
from octavo.calibration.engines.processes import Auto, Processes
from octavo.calibration.engines.protocol import Serial, threads_each
from octavo.core.cpu import cores
from octavo.errors import DataError, OctavoError, OutputError, RecipeError


@pytest.mark.parametrize("engine", [Serial(6), Processes(2, threads=6)], ids=["serial", "processes"])
def test_each_shard_comes_back_exactly_once(engine: Serial | Processes) -> None:
    found = list(engine.map(Square(0.05), range(12)))
    assert sorted((index, result[0]) for index, result in found) == [(i, i * i) for i in range(12)]
    elsewhere = os.getpid() not in {pid for _, (_, pid, _) in found}
    assert elsewhere == (engine.workers > 1)
    assert {threads for _, (_, _, threads) in found} == {6 // engine.workers}


def test_threads_are_divided_and_never_none() -> None:
    assert [threads_each(8, n) for n in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    assert threads_each(None, 1) == cores()


def test_a_lost_workers_shard_is_done_again(tmp_path: Path) -> None:
    found = list(Processes(2).map(Deadly(3, tmp_path / "mark"), range(8)))
    assert sorted(found) == [(i, i * i) for i in range(8)]


def test_a_shard_that_kills_every_worker_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OctavoError, match=r"lost 3 times while they had shard 1 .*fewer workers"):
        list(Processes(1).map(Deadly(1, tmp_path / "mark", always=True), range(3)))


@pytest.mark.parametrize("shard", [2, None], ids=["on a shard", "when opened"])
@pytest.mark.parametrize("engine", [Serial(), Processes(1)], ids=["serial", "processes"])
def test_what_a_job_raises_is_raised_as_it_is(engine: Serial | Processes, shard: int | None) -> None:
    with pytest.raises(DataError, match=r"shard 2 is bad|can't be opened"):
        list(engine.map(Refusing(shard), range(4)))


def test_shards_are_drawn_a_few_ahead_and_files_of_the_job_go_at_the_end() -> None:
    drawn = 0

    def shards() -> Iterator[int]:
        nonlocal drawn
        while True:
            drawn += 1
            yield drawn

    results = Processes(1).map(Packing(40), shards())
    index, (number, folder) = next(results)
    assert number == 41 + index
    assert drawn <= 3
    assert Path(folder).exists()
    results.close()  # type: ignore[attr-defined]
    assert not Path(folder).exists()


def test_auto_stays_in_this_process_for_little_work() -> None:
    found = list(Auto(2).map(Square(), range(5)))
    assert {pid for _, (_, pid, _) in found} == {os.getpid()}


def test_auto_goes_on_in_other_processes_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PAYS", 0.1)
    found = list(Auto(2).map(Square(0.1), range(9)))
    assert sorted((index, result[0]) for index, result in found) == [(i, i * i) for i in range(9)]
    assert len({pid for _, (_, pid, _) in found}) > 1


def test_auto_stays_where_the_job_can_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Square):
        pass

    monkeypatch.setattr(processes, "PAYS", 0.0)
    found = list(Auto(2).map(Local(), range(5)))
    assert {pid for _, (_, pid, _) in found} == {os.getpid()}


def test_engines_go_by_names() -> None:
    assert [engine_of(name).name for name in ("serial", "processes")] == ["serial", "processes"]
    assert engine_of("auto", 4).name == "auto"
    assert engine_of("auto", 1).name == "serial"
    assert engine_of(Serial()) == Serial()
    with pytest.raises(RecipeError, match="did you mean 'processes'"):
        engine_of("proceses")
    with pytest.raises(RecipeError, match="1 or more"):
        engine_of("processes", 0)
    with pytest.raises(RecipeError, match="'ray'"):
        engine_of("serial", address="auto")


SCRIPT = """
import sys, time
from octavo.calibration.engines.processes import Processes
from calibration.engines.jobs import Square
print("begun", flush=True)
for _, (_, pid, _) in Processes(2).map(Square(1.0), range(1000)):
    print(pid, flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_workers_go_with_their_parent(number: int, tmp_path: Path) -> None:
    """The script has no main guard: workers never run it."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    worker = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate()
    deadline = time.monotonic() + 20
    while _alive(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(worker)
    if number == signal.SIGINT:
        assert list(tmp_path.iterdir()) == [script]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


class Watched(Serial):
    """An engine that tells when it has ended."""

    has_ended = False

    def map(self, job: Any, shards: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        try:
            yield from super().map(job, shards)
        finally:
            Watched.has_ended = True


def test_an_engine_has_ended_when_an_error_of_calibration_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "INTERVAL", 0.0)
    monkeypatch.setattr(saved, "_MIN_WORK", 0)
    folder = tmp_path / "disk"
    folder.mkdir()

    def fail(phase: str, done: int, total: int | None) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    proto = conv_net()
    data = [{"x": np.ones((1, 3, 8, 8), np.float32)}] * 3
    with pytest.raises(OutputError, match="can't be written") as error:  # its frames live on here
        octavo.calibrate(
            proto, octavo.plan(proto), data, engine=Watched(), checkpoint=folder / "c", progress=fail
        )
    assert Watched.has_ended, error
