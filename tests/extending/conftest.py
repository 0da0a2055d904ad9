from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from .adding import ROOT

EXAMPLE = ROOT / "examples" / "fashion_mnist"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the model and the calibration data that CONTRIBUTING.md uses."""
    shutil.copy(EXAMPLE / "model.onnx", tmp_path / "model.onnx")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        images = archive["image"][:16]
    np.savez(tmp_path / "calib.npz", image=images)
    return tmp_path
