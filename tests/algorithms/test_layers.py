"""Layers as matrices of rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from builders import model, node, tensor

from octavo.algorithms.layers.layer import Layer, layer_of
from octavo.model.files import io


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("width", "is_lazy"), [(64, False), (1024, True)])
def test_scaled_copies_of_large_weights_are_made_when_they_are_read(
    transposed: bool, width: int, is_lazy: bool
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((512, width)).astype(np.float32)
    factors = rng.uniform(0.5, 2, 512)
    stored = np.ascontiguousarray(weight.T) if transposed else weight
    gemm = node("Gemm", ["x", "w"], ["y"], transB=int(transposed))
    found = io.load(model([gemm], [tensor("x", [2, 512])], [tensor("y", [2, width])], {"w": stored}))
    layer = layer_of(found.graph[0])
    assert isinstance(layer, Layer)
    layer.multiply(factors)
    scaled = found.graph.initializers["w"].const_value
    assert isinstance(scaled, ir.LazyTensor) == is_lazy
    content = scaled.numpy().T if transposed else scaled.numpy()
    assert np.array_equal(content, (weight.astype(np.float64) * factors[:, None]).astype(np.float32))
