"""The presets make of real images and texts what the zoo's models are fed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.data.feeds import Feeds
from octavo.data.fingerprints import FingerprintedSamples
from octavo.model.files import io
from octavo.model.runtime.samples import specs_of

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[4] / "shared" / "zoo")

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(not (ZOO / "inputs.py").exists(), reason="the model zoo is not here"),
]


@pytest.fixture(scope="module")
def inputs() -> Iterator[Any]:
    """The zoo's own module that makes inputs."""
    kept = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ZOO))
    try:
        yield importlib.import_module("inputs")
    finally:
        sys.path.remove(str(ZOO))
        sys.dont_write_bytecode = kept
        for name in ("inputs", "make_models"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "preset"),
    [("mobilenet_v2", "imagenet"), ("efficientnet_lite0", "imagenet-lite"), ("yolov8n", "yolo-letterbox")],
)
def test_presets_reproduce_the_inputs(name: str, preset: str, inputs: Any) -> None:
    rows = inputs.coco_images("train2017", 8) if name == "yolov8n" else inputs.imagenet_rows("calib", 8)
    specs = specs_of(io.load(ZOO / "models" / name / "model.onnx"))
    found = Feeds(octavo.images([path for path, _ in rows], preset), specs)
    for got, want in zip(found, inputs.calibration(name, 8), strict=True):
        assert all(np.array_equal(got[key], want[key]) for key in want)


@pytest.mark.parametrize(
    "name", ["mobilenet_v2", "efficientnet_lite0", "fashion_cnn", "ppocrv4_rec", "magika"]
)
def test_real_data_raises_no_alarm(name: str, inputs: Any) -> None:
    model = io.load(ZOO / "models" / name / "model.onnx")
    found = FingerprintedSamples.of(list(inputs.calibration(name, 8)), model)
    assert list(found)
    assert found.notes == ()
