"""Real models with an injury made by hand: the injured tensor is named first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from octavo.model.files import io

from .injuries import content, put

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
MOBILENET = ZOO / "models" / "mobilenet_v2" / "model.onnx"

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(not MOBILENET.exists(), reason="the model zoo is not here"),
]


def _samples(count: int) -> list[dict[str, np.ndarray]]:
    sys.path.insert(0, str(ZOO))
    from evaluate import calibration

    return list(calibration("mobilenet_v2", limit=count))


@pytest.fixture(scope="module")
def samples() -> list[dict[str, np.ndarray]]:
    return _samples(3)


@pytest.fixture(scope="module", params=["qdq", "qoperator"])
def quantized(request: pytest.FixtureRequest, samples: list[dict[str, np.ndarray]]) -> onnx.ModelProto:
    return io.to_proto(octavo.quantize(MOBILENET, samples, style=request.param).model)


def _layer(output: str) -> tuple[str, str]:
    """Weight and bias of the convolution that gives a tensor, before a Clip perhaps."""
    graph = onnx.load(MOBILENET).graph
    makers = {name: n for n in graph.node for name in n.output}
    node = makers[output]
    node = makers[node.input[0]] if node.op_type == "Clip" else node
    return node.input[1], node.input[2]


def _scale_bias(proto: onnx.ModelProto, bias: str, factor: float) -> None:
    """A bias in steps that are ``factor`` times as large."""
    names = {array.name for array in proto.graph.initializer}
    integers = np.rint(content(proto, f"{bias}_quantized") / factor).astype(np.int32)
    put(proto, f"{bias}_quantized", integers)
    if f"{bias}_quantized_scale" in names:
        put(
            proto,
            f"{bias}_quantized_scale",
            (content(proto, f"{bias}_quantized_scale") * factor).astype("f4"),
        )


def test_a_coarse_weight_of_a_real_model_is_named_first(
    quantized: onnx.ModelProto, samples: list[dict[str, np.ndarray]]
) -> None:
    proto = onnx.ModelProto.FromString(quantized.SerializeToString())
    weight, bias = _layer("/features/features.9/conv/conv.2/Conv_output_0")
    stored, scale = content(proto, f"{weight}_quantized"), content(proto, f"{weight}_scale")
    put(proto, f"{weight}_quantized", np.rint(stored / 32).astype(np.int8))
    put(proto, f"{weight}_scale", (scale * 32).astype(np.float32))
    _scale_bias(proto, bias, 32)
    found = octavo.compare(MOBILENET, proto, samples, threads=1)
    assert not found.unmatched
    assert (found.culprits[0].tensor, found.culprits[0].cause) == (weight, "coarse scale")


def test_a_clipped_activation_of_a_real_model_is_named_first(
    quantized: onnx.ModelProto, samples: list[dict[str, np.ndarray]]
) -> None:
    proto = onnx.ModelProto.FromString(quantized.SerializeToString())
    clipped, reader = TENSOR
    put(proto, f"{clipped}_scale", (content(proto, f"{clipped}_scale") / 2).astype(np.float32))
    _scale_bias(proto, _layer(reader)[1], 0.5)
    found = octavo.compare(MOBILENET, proto, samples, threads=1)
    assert (found.culprits[0].tensor, found.culprits[0].cause) == (clipped, "clipped")


TENSOR = (
    "/features/features.2/conv/conv.0/conv.0.2/Clip_output_0",
    "/features/features.2/conv/conv.1/conv.1.2/Clip_output_0",
)
