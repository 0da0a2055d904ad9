"""The demo's model and data, as for the tests of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``model.onnx`` and ``calib.npz``."""
    shutil.copy(EXAMPLE / "model.onnx", tmp_path / "model.onnx")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        images = archive["image"][:8]
    np.savez(tmp_path / "calib.npz", image=images)
    monkeypatch.chdir(tmp_path)
    return tmp_path
