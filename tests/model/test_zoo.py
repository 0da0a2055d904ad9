"""Real models: loaded, normalized, prepared and saved, they compute what they did."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import Session
from octavo.model.runtime.verification import verify

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
MODELS = sorted((ZOO / "models").glob("*/model.onnx"))
MORE = sorted((ZOO.parents[1] / "zoo_models").glob("*/model.onnx"))

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(not MODELS, reason="the model zoo is not here"),
]

OPTIONS = {
    "as it is": PrepareOptions(),
    "opset 13": PrepareOptions(opset=13),
    "opset 17": PrepareOptions(opset=17),
    "opset 21": PrepareOptions(opset=21),
    "optimized": PrepareOptions(runtime_optimization=True),
}


def _name(path: Path) -> str:
    return path.parent.name


def _close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert list(got) == list(want)
    for name, array in want.items():
        scale = max(1.0, float(np.abs(array).max(initial=0)))
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("choice", OPTIONS)
@pytest.mark.parametrize("path", MODELS, ids=_name)
def test_preparation_keeps_what_a_model_computes(path: Path, choice: str, tmp_path: Path) -> None:
    before = Session.open(path)
    feeds = sample_inputs(before.inputs)
    model = io.load(path)
    print(prepare(model, OPTIONS[choice]))
    written = io.save(model, tmp_path / "out.onnx", external_data=choice == "as it is")
    verify(written[0], feeds=feeds)
    _close(Session.open(written[0]).run(feeds), before.run(feeds))
    again = Session.open(model)
    assert [(s.name, s.dtype, len(s.shape)) for s in again.inputs] == [
        (s.name, s.dtype, len(s.shape)) for s in before.inputs
    ]
    _close(again.run(feeds), before.run(feeds))
    if choice == "as it is":
        assert not prepare(model).changes


@pytest.mark.slow
@pytest.mark.parametrize("path", MORE, ids=_name)
def test_larger_models_too(path: Path, tmp_path: Path) -> None:
    before = Session.open(path)
    feeds = sample_inputs(before.inputs)
    want = before.run(feeds)
    del before
    model = io.load(path)
    prepare(model, PrepareOptions(opset=21))
    written = io.save(model, tmp_path / "out.onnx")
    _close(Session.open(written[0]).run(feeds), want)
    _close(Session.open(model).run(feeds), want)


def test_the_paddle_detector_gets_one_operator_per_activation() -> None:
    paths = [path for path in MODELS if _name(path) == "ppocrv4_det"]
    if not paths:
        pytest.skip("not in this zoo")
    model = io.load(paths[0])
    prepare(model, PrepareOptions(opset=17))
    found = [node.op_type for node in query.nodes(model)]
    assert "BatchNormalization" not in found
    assert found.count("HardSwish") == 24
