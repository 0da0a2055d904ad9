"""The model and the data of the demo, where a command line would find them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from octavo.cli import console

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "fashion_mnist"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``model.onnx`` and ``calib.npz``; a slow machine makes no lines of progress."""
    monkeypatch.setattr(console, "PATIENCE", 600.0)
    shutil.copy(EXAMPLE / "model.onnx", tmp_path / "model.onnx")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        images = archive["image"][:16]
    np.savez(tmp_path / "calib.npz", image=images)
    monkeypatch.chdir(tmp_path)
    return tmp_path
