"""What :mod:`test_ray` looks at, in a process of its own: Ray reads its settings when it is first imported.

The Ray is real: on loopback, with a token where this version knows tokens, without a dashboard.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("RAY_ADDRESS", None)
os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # by which Ray stays on loopback
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    PYTHONPATH=os.pathsep.join(path for path in sys.path if path),
)

import numpy as np
import ray
from quantizing import convolutions
from tuning.nets import conv_and_linear, samples

import octavo
from calibration.engines.jobs import Deadly, Killing, Refusing
from octavo import tune
from octavo.calibration.engines.ray import JobFiles, RayEngine
from octavo.errors import OctavoError
from octavo.evaluation.timing.latency import Ratio
from octavo.tuning import runner


def said(engine: RayEngine, job: Any) -> str:
    try:
        list(engine.map(job, range(3)))
    except OctavoError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def copied() -> list[Any]:
    """A folder that can't be seen any more is written anew from the store, and removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "number").write_text("7")
        files = JobFiles.of(Path(name), "token", ray.put)
    with files.open(ray.get) as folder:
        content = (folder / "number").read_text()
    return [content, str(folder) != name, folder.exists()]


def same_bits(scratch: Path) -> list[bool]:
    """Statistics by Ray, from files and from a stream, with a worker killed on the way."""
    proto, data = convolutions(2), np.random.default_rng(0).normal(size=(30, 8, 8, 8)).astype(np.float32)
    np.save(scratch / "data.npy", data)
    plan = octavo.plan(proto)
    found = [
        octavo.calibrate(proto, plan, source, engine=engine).to_bytes()
        for source, engine in (
            (scratch / "data.npy", "serial"),
            (scratch / "data.npy", Killing(RayEngine(2), scratch / "mark2")),
            (iter([{"x": sample[None]} for sample in data]), "serial"),
            (iter([{"x": sample[None]} for sample in data]), RayEngine(1)),
        )
    ]
    return [found[0] == found[1], found[2] == found[3], (scratch / "mark2").exists()]


def tuned(scratch: Path) -> list[Any]:
    """The automatic choice by both engines: statistics, trials and what is written; speeds are made up."""
    same = Ratio(1.5, 1.5, 1.5)
    runner.speeds = lambda _, models, *rest, **more: [same] * len(models)  # type: ignore[assignment]
    found, written = [], []
    for engine in ("serial", "ray"):
        path = scratch / f"{engine}.onnx"
        one = tune(conv_and_linear(), samples(8), engine=engine, threads=1, output=path)
        assert one.best is not None and one.result is not None and one.result.stats is not None
        trials = [[trial.name, trial.sqnr_db, trial.agreement, trial.error] for trial in one.trials]
        found.append([one.best.name, trials, one.result.stats.to_bytes()])
        written.append(path.read_bytes())
    return [*(ours == theirs for ours, theirs in zip(*found, strict=True)), len(set(written))]


def main(scratch: Path) -> dict[str, Any]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
    )
    once = RayEngine(2).map(Deadly(3, scratch / "mark"), range(8))
    return {
        "killed once": sorted(once),
        "killed always": said(RayEngine(1), Deadly(1, scratch / "mark", always=True)),
        "refused": said(RayEngine(1), Refusing(2)),
        "copied": copied(),
        "workers": [RayEngine().workers, RayEngine(7).workers, RayEngine(threads=2).workers],
        "same bits": same_bits(scratch),
        "tuned": tuned(scratch),
        "address": ray.get_runtime_context().gcs_address,
    }


if __name__ == "__main__":
    try:
        scratch = Path(sys.argv[1])
        (scratch / "found.json").write_text(json.dumps(main(scratch)))
    finally:
        ray.shutdown()
