"""Runs on a Ray cluster of three nodes of this machine, in which something dies: ``session.py FOLDER [RUN]``.

Ray reads its settings when it is imported, so that this is a process of its own; :mod:`test_cluster` looks at
what it writes. Every run is compared with one in a single process: the same bits mean that every sample was
counted, and none twice.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.pop("RAY_ADDRESS", None)
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    RAY_memory_monitor_refresh_ms="0",  # where others take the memory, Ray would kill workers of ours
    PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
)

import onnx
from quantizing import convolutions
from ray.cluster_utils import Cluster

from cluster.slow import Slow

PATIENCE = 400.0  # seconds for one run, on a loaded machine
STRIKES_AT = 40  # samples that workers have read when a fault strikes
STARTS = 4  # attempts to start a node
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
Fault = Callable[["Run"], None]


class Run:
    """A driver at work on the cluster."""

    def __init__(self, what: str, folder: Path, address: str) -> None:
        (folder / "disk").mkdir(parents=True, exist_ok=True)
        self.what, self.folder, self.address = what, folder, address
        self.data = Slow(folder / "log")
        self.drivers: list[int] = []
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cluster.driver", self.what, str(self.folder), self.address]
        with (self.folder / "said").open("ab") as said:
            process = subprocess.Popen(command, stdout=said, stderr=said)
        self.drivers.append(process.pid)
        return process

    def read(self) -> list[tuple[int, int]]:
        """The samples that workers have read; the driver itself looks at some, to know the data again.

        Of a search all: it holds samples back, and sends the others to its workers.
        """
        found = self.data.read()
        return found if self.what == "search" else [one for one in found if one[1] not in self.drivers]

    def wait_for(self, samples: int) -> None:
        """Return when workers have read so many samples; raise where the run ends before."""
        end = time.monotonic() + PATIENCE
        while len(self.read()) < samples:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.folder.name} ended too early: {self.said()}")
            time.sleep(0.05)

    def again(self) -> None:
        """Start the driver once more."""
        self.process = self._start()

    def said(self) -> str:
        """The end of what the driver wrote."""
        return (self.folder / "said").read_text(errors="replace")[-1500:]

    def code(self) -> int:
        """The exit code of the driver, when it has ended."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError(f"{self.folder.name} did not end: {self.said()}") from None

    def result(self) -> bytes:
        """What the driver made of it."""
        if code := self.code():
            raise RuntimeError(f"{self.folder.name} ended with {code}: {self.said()}")
        return (self.folder / "disk" / "out").read_bytes()


def started(start: Callable[[], Any]) -> Any:
    """Start a part of the cluster: Ray gives it 30 seconds, which a loaded machine may not have."""
    for attempt in range(1, STARTS + 1):
        try:
            return start()
        except Exception as error:  # Ray raises nothing more special
            tell(f"start {attempt} of {STARTS}", {"failed": str(error).strip().split("\n")[0]})
            if attempt == STARTS:
                raise
    raise AssertionError


def worker_process() -> int:
    """The process of an actor at work; Ray names them in their command line."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if path.read_bytes().startswith(b"ray::_Actor"):
                    return int(path.parent.name)
        time.sleep(0.05)
    raise RuntimeError("there is no worker")


def tell(name: str, found: dict[str, Any]) -> None:
    """Print what came of a run."""
    sys.stdout.write(f"{name}: {found}\n")
    sys.stdout.flush()


def same(what: str, one: bytes, other: bytes) -> bool:
    """Whether two results are the same to the bit.

    Which ways a search tries depends on how fast they are; the figures of those that both tried are compared.
    """
    if what != "search":
        return one == other
    first, second = json.loads(one), json.loads(other)
    both = first.keys() & second.keys()
    return bool(both) and all(first[name] == second[name] for name in both)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 32 MiB in the place of a run's result folder; needs to be root on Linux."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "octavo-test", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass


def full_disk(root: Path, address: str, what: str, expected: bytes) -> dict[str, Any]:
    """The disk runs full in mid-run; with room again, the same command ends as if nothing had happened."""
    folder = root / f"full-{what}"
    with small_disk(folder) as disk:
        run = Run(what, folder, address)
        run.wait_for(STRIKES_AT)
        fill(disk)
        code = run.code()
        left = sorted(path.name for path in disk.iterdir())
        named = "no space left" in run.said().lower()
        (disk / "filler").unlink()
        run.again()
        is_same = same(what, run.result(), expected)
        read = [sample for sample, _ in run.read()]
        return {
            "same bits": is_same,
            "ended with a sentence": bool(code) and named,
            "left": [name for name in left if name not in ("filler", "checkpoint")],
            "samples": len(set(read)),
            "read again": len(read) - len(set(read)),
        }


def main(root: Path, only: str = "") -> dict[str, Any]:
    """Every fault once; returns by its name whether it struck, whether the bits are the same, the seconds."""
    onnx.save(convolutions(2), root / "model.onnx")
    expected = {
        what: Run(what, root / f"serial-{what}", "serial").result()
        for what in ("calibrate", "evaluate", "search")
    }
    cluster = started(lambda: Cluster(initialize_head=True, head_node_args=NODE))
    nodes = [started(lambda: cluster.add_node(**NODE)) for _ in range(2)]
    try:
        cluster.wait_for_nodes()

        def node_killed(run: Run) -> None:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            nodes.append(started(lambda: cluster.add_node(**NODE)))

        def worker_killed(run: Run) -> None:
            os.kill(worker_process(), signal.SIGKILL)

        def driver_killed(run: Run) -> None:
            run.process.kill()
            run.process.wait()
            run.again()

        def none(run: Run) -> None:
            pass

        cases: dict[str, tuple[str, Fault]] = {
            "calibration": ("calibrate", none),
            "calibration, a worker killed": ("calibrate", worker_killed),
            "calibration, a node killed": ("calibrate", node_killed),
            "calibration, the driver killed and started again": ("calibrate", driver_killed),
            "evaluation": ("evaluate", none),
            "evaluation, a worker killed": ("evaluate", worker_killed),
            "evaluation, a node killed": ("evaluate", node_killed),
            "search": ("search", none),
            "search, a worker killed": ("search", worker_killed),
            "search, a node killed": ("search", node_killed),
            "search, the driver killed and started again": ("search", driver_killed),
        }
        found: dict[str, Any] = {}
        for number, (name, (what, fault)) in enumerate(cases.items()):
            if only not in name:
                continue
            begin = time.monotonic()
            run = Run(what, root / f"run{number}", cluster.address)
            run.wait_for(4 * STRIKES_AT if what == "search" else STRIKES_AT)
            fault(run)
            is_same = same(what, run.result(), expected[what])
            read = [sample for sample, _ in run.read()]
            found[name] = {
                "same bits": is_same,
                "samples": len(set(read)),
                "read again": len(read) - len(set(read)),
                "processes": len({process for _, process in run.read()}),
                "seconds": round(time.monotonic() - begin, 1),
            }
            tell(name, found[name])
        name = "calibration, the disk full"
        if only in name and sys.platform == "linux" and os.geteuid() == 0:
            found[name] = full_disk(root, cluster.address, "calibrate", expected["calibrate"])
            tell(name, found[name])
        return found
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "found.json").write_text(json.dumps(main(folder, *sys.argv[2:])))
