"""How many samples a second calibration takes on Ray with 1, 2 and 4 workers, and what a shard costs.

    make .venv/.ray && .venv/bin/python scripts/ray_throughput.py [--work 0.02]

Each sample waits ``--work`` seconds, as for a disk or a slow model, so that the figures say what the engine
adds and not how many cores the machine has. The driver reads some samples itself, to know the data again
and to see whether they look right (``ahead``). ``engine`` is what is left of the time when waiting, starting
and reading ahead are taken away, for each shard: sending it, giving it out, taking in its statistics.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def main() -> int:
    """Time calibration with each number of workers, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=float, default=0.05, help="seconds that each sample waits")
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    import ray
    from cluster.slow import Slow
    from quantizing import convolutions

    import octavo
    from octavo.calibration.engines.ray import RayEngine

    model = convolutions(2)
    plan = octavo.plan(model)
    ray.init(address="local", num_cpus=max(options.workers), include_dashboard=False, log_to_driver=False,
             logging_level="ERROR", object_store_memory=200 << 20, _node_ip_address="127.0.0.1")  # fmt: skip
    sys.stdout.write("workers  seconds  samples/s  of the ideal  ahead s  shards  engine ms/shard\n")
    with tempfile.TemporaryDirectory() as folder:
        for workers in options.workers:
            spent: list[float] = []
            for count in (workers, options.samples):  # the first shows what starting costs
                data = Slow(Path(folder) / f"log{workers}-{count}", count, options.work)
                engine = _Counting(RayEngine(workers, threads=1))
                begin = time.perf_counter()
                octavo.calibrate(model, plan, data, engine=engine, threads=1)
                spent.append(time.perf_counter() - begin)
            ideal = options.work * options.samples / workers
            ahead = options.work * sum(process == os.getpid() for _, process in data.read())
            took = spent[1] - spent[0] - ahead + 2 * options.work  # what the first run waits is in it
            rest = max(0.0, took - ideal) / max(1, engine.shards) * 1000
            sys.stdout.write(
                f"{workers:7} {took:8.2f} {options.samples / took:10.1f} {ideal / took:12.0%} {ahead:8.1f} "
                f"{engine.shards:7} {rest:16.1f}\n"
            )
            sys.stdout.flush()
    ray.shutdown()
    return 0


class _Counting:
    """An engine that counts the shards that it is given."""

    def __init__(self, inner: object) -> None:
        self.inner, self.shards = inner, 0
        self.name = "ray"

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def map(self, job: object, shards: object) -> object:
        for found in self.inner.map(job, shards):  # type: ignore[attr-defined]
            self.shards += 1
            yield found


if __name__ == "__main__":
    sys.exit(main())
