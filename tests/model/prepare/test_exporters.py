"""What the exporters write becomes one normal form: weights are constants, and their layers are quantized."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.runtime.session import Session

from .exporters import HABITS, sklearn_pipelines
from .helpers import before_and_after

OPTIONS = PrepareOptions(symbolic_shapes=False)  # it takes a process of its own


def samples(shape: tuple[int, ...], count: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(7)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("name", HABITS)
def test_prepared_model_is_in_normal_form_and_computes_the_same(name: str) -> None:
    case = HABITS[name]()
    rtol = 1e-2 if "float16" in name else 1e-4
    found = before_and_after(
        case.proto, lambda m: prepare(m, OPTIONS), samples(case.shape)[0], rtol=rtol, atol=rtol
    )
    left = {node.op_type for node in query.nodes(found)} & {*case.gone, "Constant"}
    assert not left
    layers = [n for n in query.nodes(found) if n.op_type in case.layers]
    assert Counter(n.op_type for n in layers if query.constant(n.inputs[1]) is not None) == case.layers


@pytest.mark.parametrize("name", HABITS)
def test_layers_are_quantized_and_right(name: str) -> None:
    case = HABITS[name]()
    data = samples(case.shape)
    result = octavo.quantize(case.proto, data, effort="plain", prepare=OPTIONS)
    quantized_layers = {op: count for op, count in case.layers.items() if op not in case.in_float}
    assert {op: result.plan.counts()[op] for op in quantized_layers} == quantized_layers
    float_model = Session.open(case.proto.SerializeToString())
    quantized = Session.open(io.to_bytes(result.model))
    signal = noise = 0.0
    for feeds in samples(case.shape, 4):
        want, got = float_model.run(feeds)["y"], quantized.run(feeds)["y"]
        signal += float(np.square(want, dtype=np.float64).sum())
        noise += float(np.square(want.astype(np.float64) - got).sum())
    assert 10 * np.log10(signal / noise) > 25


@pytest.mark.parametrize("name, proto", sklearn_pipelines().items())
def test_pipeline_without_layers_is_refused_in_a_sentence(name: str, proto: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match="classical machine learning"):
        octavo.quantize(proto, samples((2, 16)), effort="plain")
