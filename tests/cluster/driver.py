"""One run on the cluster, in a process that may be killed: ``driver.py WHAT FOLDER ADDRESS``.

Results and checkpoint go to ``FOLDER/disk``, which may be a small file system of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx

import octavo
from cluster.slow import Slow
from octavo.calibration import saved
from octavo.tuning.trial import Trial


def main(what: str, folder: Path, address: str) -> None:
    """Calibrate, evaluate or search, and write what came of it."""
    disk = folder / "disk"
    model = onnx.load(folder.parent / "model.onnx")
    pause = 0.03 if what == "search" else 0.15  # a search reads the data several times
    data = Slow(folder / "log", seconds=0.0 if address == "serial" else pause)
    engine = (
        {"engine": "serial"} if address == "serial" else {"engine": "ray", "address": address, "workers": 3}
    )
    saved.INTERVAL, saved._MIN_WORK = 0.3, 0  # a checkpoint with every shard
    if what == "calibrate":
        stats = octavo.calibrate(
            model, octavo.plan(model), data, threads=1, checkpoint=disk / "checkpoint", **engine
        )
        saved.save(stats, disk / "out")
        return
    if what == "search":
        tuned = octavo.tune(
            model, data, effort="search", output=disk / "best.onnx", threads=1, seconds=0.05, time_limit=180,
            **engine,
        )  # fmt: skip
        (disk / "out").write_text(
            json.dumps({trial.name: _measured(trial) for trial in tuned.trials if trial.error is None})
        )
        return
    quantized = octavo.quantize(
        model, list(Slow(folder / "other", seconds=0.0).portion(0, 2)), effort="plain", threads=1
    )
    found = octavo.evaluate(model, data, "agreement", against=quantized.model, threads=1, **engine)
    (disk / "out").write_text(str(found))


def _measured(trial: Trial) -> list[object]:
    """What was measured of a trial on the cluster: every figure but its speed."""
    return [trial.bytes, trial.sqnr_db, trial.agreement, dict(trial.parts)]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
