"""One run on the cluster, in a process that may be killed: ``driver.py WHAT FOLDER ADDRESS``."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

import octavo
from cluster.slow import Slow
from octavo.calibration import saved


def main(what: str, folder: Path, address: str) -> None:
    """Calibrate, or evaluate, and write what came of it."""
    model = onnx.load(folder.parent / "model.onnx")
    data = Slow(folder / "log", seconds=0.0 if address == "serial" else 0.15)
    engine = (
        {"engine": "serial"} if address == "serial" else {"engine": "ray", "address": address, "workers": 3}
    )
    saved.INTERVAL, saved._MIN_WORK = 0.3, 0  # a checkpoint with every shard
    if what == "calibrate":
        stats = octavo.calibrate(
            model, octavo.plan(model), data, threads=1, checkpoint=folder / "checkpoint", **engine
        )
        saved.save(stats, folder / "out.stats")
        return
    quantized = octavo.quantize(
        model, list(Slow(folder / "other", seconds=0.0).portion(0, 2)), effort="plain", threads=1
    )
    found = octavo.evaluate(model, data, "agreement", against=quantized.model, threads=1, **engine)
    (folder / "out.txt").write_text(str(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
