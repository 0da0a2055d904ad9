"""On a real CNN, results for TensorRT, QNN and OpenVINO keep to their sheets, and OpenVINO runs them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.model.runtime.session import Session

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
COUNT = 12

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(not (ZOO / "evaluate.py").is_file(), reason="the model zoo is not here"),
]


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The zoo's own evaluation, and no trace of it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ZOO))
    yield importlib.import_module("evaluate")
    for name in {"evaluate", "inputs", "make_models"} - before:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("target", ["ort-cpu-vnni", "ort-cpu-avx2", "tensorrt", "qnn", "openvino"])
def test_nothing_is_found_in_mobilenet(zoo: Any, target: str) -> None:
    samples = list(zoo.calibration("mobilenet_v2", limit=4))
    result = octavo.quantize(zoo.model_path("mobilenet_v2"), samples, target=target, effort="plain")
    assert not octavo.lint(result.model, target=target).findings


# In a process of its own, and without AMX, which a virtual machine may name and not allow.
_RUN = """
import sys
import numpy as np
import openvino
model, data, out = sys.argv[1:]
compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
results = [np.asarray(list(compiled([sample[None]]).values())[0]) for sample in np.load(data)]
np.save(out, np.concatenate(results))
"""


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
@pytest.mark.parametrize("name", ["mobilenet_v2", "efficientnet_lite0"])
def test_openvino_agrees_with_onnx_runtime(zoo: Any, name: str, tmp_path: Path) -> None:
    samples = list(zoo.calibration(name, limit=COUNT))
    path = tmp_path / "model.onnx"
    octavo.quantize(zoo.model_path(name), samples, target="openvino", output=path, effort="plain")
    data, out = tmp_path / "data.npy", tmp_path / "out.npy"
    np.save(data, np.concatenate([next(iter(sample.values())) for sample in samples]))
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
    subprocess.run([sys.executable, "-c", _RUN, str(path), str(data), str(out)], env=environment, check=True)
    session = Session.open(path, optimize=False)
    want = np.concatenate([next(iter(session.run(sample).values())) for sample in samples])
    got = np.load(out)
    noise = 10 * np.log10(np.sum(want**2) / np.sum((want - got) ** 2))
    assert noise > 15.0
    assert np.mean(want.argmax(axis=1) == got.argmax(axis=1)) >= 0.75
