"""The weight-only functions of the vendored package's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from octavo.errors import RecipeError
from octavo.quantization.neural_compressor import gptq_quantize, rtn_quantize, weight_only
from quantization.weight_graphs import attribute, product, run, stored_weight, three, weights


class Loader:
    """Samples with labels, as training loaders give them."""

    batch_size = 32

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        mix = weights(24, 96, seed=9)
        for i in range(3):
            yield weights(32, 24, seed=i) @ mix, i


@pytest.mark.parametrize("scheme", ["asym", "sym"])
@pytest.mark.parametrize("bits", [3, 4, 8])
def test_quant_tensor_and_back(scheme: str, bits: int) -> None:
    w = weights(4, 48)
    for dtype in ("int", "uint"):
        q, scale, zero = weight_only.quant_tensor(w, bits, 16, scheme, dtype)
        assert (q.shape, scale.shape, zero.shape) == ((12, 16), (12, 1), (12, 1))
        low = -(2 ** (bits - 1)) if (scheme, dtype) == ("sym", "int") else 0
        assert q.min() >= low
        assert q.max() < low + 2**bits
        back = ((q - zero) * scale).reshape(w.shape)
        assert np.abs(back - w).max() <= 0.51 * scale.max()
    np.testing.assert_allclose(weight_only.qdq_tensor(w, bits, 16, scheme), back, atol=1e-6)


def test_k_quant_of_an_array() -> None:
    w = weights(4, 48)
    q, scale, zero = weight_only.quant_tensor_k_quant_cpu(w, 4, 16)
    assert zero.dtype == np.uint8
    assert np.abs(((q - zero) * scale).reshape(w.shape) - w).max() < 1.1 * scale.max()
    for a, b in zip((q, scale, zero), weight_only.quant_tensor_k_quant_cuda(w, 4, 16), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pad_tensor_and_get_weight_scale() -> None:
    w = weights(48, 4)
    padded = weight_only.pad_tensor(w, 32, 2)
    assert padded.shape == (64, 4)
    assert not padded[48:].any()
    part = np.abs(w.reshape(-1, 16))
    want = (part / part.max(1, keepdims=True)).reshape(w.shape).mean(0)
    np.testing.assert_allclose(weight_only.get_weight_scale(w, 16), want, rtol=1e-6)


def test_gptq_of_an_array() -> None:
    w, x = weights(96, 6), np.concatenate([sample for sample, _ in Loader()]).astype(np.float64)
    fed = weight_only.gptq(w, x.T @ x, 4, 32)
    plain = weight_only.qdq_tensor(w.T, 4, 32).T
    assert (fed.shape, fed.dtype) == (w.shape, w.dtype)
    assert np.linalg.norm(x @ (fed - w)) < 0.6 * np.linalg.norm(x @ (plain - w))


@pytest.mark.parametrize("scheme", ["asym", "sym"])
def test_a_node_from_what_is_quantized_already(scheme: str) -> None:
    proto = product()
    w = weights(8, 96, seed=3)
    q, scale, zero = weight_only.quant_tensor(w, 4, 32, scheme, "uint")
    found, constants = weight_only.make_matmul_weight_only_node(
        proto.graph.node[0],
        (96, 8),
        4,
        32,
        3,
        q.astype(np.uint8),
        scale,
        None if scheme == "sym" else zero,
        4,
    )
    assert (found.op_type, found.name, attribute(found, "accuracy_level")) == ("MatMulNBits", "mm0_Q4", 4)
    assert {t.name for t in constants} == set(found.input) - {"x"}
    proto.graph.initializer.extend(constants)
    np.testing.assert_allclose(stored_weight(proto, found).T, ((q - zero) * scale).reshape(8, 96), atol=1e-6)


@pytest.mark.parametrize("algorithm", ["rtn", "k_quant"])
def test_rtn_quantize(algorithm: str) -> None:
    config = {"mm0": {"bits": 8, "group_size": 16, "scheme": "sym"}, "mm1": "fp32"}
    made = rtn_quantize(three(), config, algorithm=algorithm).model
    assert [n.op_type for n in made.graph.node] == ["MatMulNBits", "MatMul", "MatMulNBits"]
    assert [attribute(made.graph.node[0], a) for a in ("bits", "block_size")] == [8, 16]
    assert [attribute(made.graph.node[2], a) for a in ("bits", "block_size")] == [4, 32]
    feeds = {"t0": weights(2, 32)}
    want = run(three(), feeds)
    assert np.abs(run(made, feeds) - want).max() < 0.3 * np.abs(want).max()
    with pytest.raises(RecipeError, match="rtn or k_quant"):
        rtn_quantize(three(), algorithm="best")


def test_gptq_quantize_and_prepare_inputs() -> None:
    inputs, _ = weight_only.prepare_inputs(product(), 2, Loader(), ["CPUExecutionProvider"])
    assert [list(sample) for sample in inputs] == [["x"], ["x"]]
    made = gptq_quantize(product(), Loader(), num_bits=8, group_size=32).model
    assert isinstance(made, onnx.ModelProto)
    assert attribute(made.graph.node[0], "bits") == 8
