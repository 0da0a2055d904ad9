"""The demo of the README keeps its promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_quantizes_evaluates_and_measures(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "examples/fashion_mnist/demo.py",
            "--out",
            str(tmp_path / "out"),
            "--seconds",
            "0.1",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in ("quantized (", "accuracy, 1000 images", "size", "latency, batch 1", "latency, batch 32"):
        assert line in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.int8.onnx",
        "model.int8.onnx.manifest.json",
    ]
