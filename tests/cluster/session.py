"""Runs on a Ray cluster of three nodes of this machine, in which something dies: ``session.py FOLDER``.

Ray reads its settings when it is imported, so that this is a process of its own; :mod:`test_cluster` looks at
what it writes. Every run is compared with one in a single process: the same bits mean that every sample was
counted, and none twice.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.pop("RAY_ADDRESS", None)
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
)

import onnx
from quantizing import convolutions
from ray.cluster_utils import Cluster

from cluster.slow import Slow

PATIENCE = 240.0  # seconds for one run, on a loaded machine
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
Fault = Callable[["Run"], None]


class Run:
    """A driver at work on the cluster."""

    def __init__(self, what: str, folder: Path, address: str) -> None:
        folder.mkdir(exist_ok=True)
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
        """The samples that workers have read; the driver itself looks at some, to know the data again."""
        return [(sample, process) for sample, process in self.data.read() if process not in self.drivers]

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

    def result(self) -> bytes:
        """What the driver made of it."""
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise RuntimeError(f"{self.folder.name} did not end: {self.said()}") from None
        if code:
            raise RuntimeError(f"{self.folder.name} ended with {code}: {self.said()}")
        name = "out.stats" if self.what == "calibrate" else "out.txt"
        return (self.folder / name).read_bytes()


def main(root: Path) -> dict[str, Any]:
    """Every fault once; returns by its name whether it struck, whether the bits are the same, the seconds."""
    onnx.save(convolutions(2), root / "model.onnx")
    expected = {
        what: Run(what, root / f"serial-{what}", "serial").result() for what in ("calibrate", "evaluate")
    }
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    nodes = [cluster.add_node(**NODE) for _ in range(2)]
    try:
        cluster.wait_for_nodes()

        def node_killed(run: Run) -> None:
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            nodes.append(cluster.add_node(**NODE))

        def worker_killed(run: Run) -> None:
            os.kill(run.read()[-1][1], signal.SIGKILL)

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
        }
        found: dict[str, Any] = {}
        for number, (name, (what, fault)) in enumerate(cases.items()):
            begin = time.monotonic()
            run = Run(what, root / f"run{number}", cluster.address)
            run.wait_for(40)
            fault(run)
            same = run.result() == expected[what]
            read = [sample for sample, _ in run.read()]
            found[name] = {
                "same bits": same,
                "samples": len(set(read)),
                "read again": len(read) - len(set(read)),
                "processes": len({process for _, process in run.read()}),
                "seconds": round(time.monotonic() - begin, 1),
            }
            sys.stdout.write(f"{name}: {found[name]}\n")
            sys.stdout.flush()
        return found
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "found.json").write_text(json.dumps(main(folder)))
