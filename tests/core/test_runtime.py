"""The kernels give what ONNX Runtime gives, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from core import runtime
from octavo.core import affine, kernels
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8E4M3FN, INT4, INT8, INT16, INT32, QTYPES, UINT4, UINT8, UINT16, QType
from octavo.core.scheme import Scheme

INTEGERS = (UINT8, INT8, UINT16, INT16, UINT4, INT4)
GRAINS = (
    PerTensor(),
    PerChannel(0),
    PerChannel(1),
    PerChannel(-1),
    PerBlock(16, 0),
    PerBlock(8, 1),
    PerBlock(7, 2),
)


def sample(seed: int, shape: tuple[int, ...] = (32, 24, 20), dtype: type = np.float32) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * rng.uniform(0.01, 30, (shape[0], shape[1], 1))).astype(dtype)


def fitted(
    x: np.ndarray, kind: QType, grain: Granularity, *, tight: float = 1.0, symmetric: bool = False
) -> QParams:
    low, high = kernels.extremes(x, grain)
    if kind.is_float:
        return affine.from_std(
            np.maximum(np.abs(low), np.abs(high)) * tight / 3, Scheme(kind, grain), x.dtype
        )
    return affine.from_range(low * tight, high * tight, Scheme(kind, grain, symmetric=symmetric), x.dtype)


@pytest.mark.parametrize("grain", GRAINS, ids=str)
@pytest.mark.parametrize("kind", QTYPES.values(), ids=str)
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
def test_quantize_is_QuantizeLinear(kind: QType, grain: Granularity, symmetric: bool) -> None:
    x = sample(1)
    params = fitted(x, kind, grain, tight=0.8, symmetric=symmetric)  # so that some values saturate
    ours = kernels.quantize(x, params)
    assert ours.dtype == kind.dtype
    np.testing.assert_array_equal(ours.astype(np.float32), runtime.quantized(x, params).astype(np.float32))


@pytest.mark.parametrize("grain", GRAINS, ids=str)
@pytest.mark.parametrize("kind", QTYPES.values(), ids=str)
def test_dequantize_is_DequantizeLinear(kind: QType, grain: Granularity) -> None:
    x = sample(2)
    params = fitted(x, kind, grain)
    q = kernels.quantize(x, params)
    ours = kernels.dequantize(q, params)
    assert ours.dtype == np.float32
    np.testing.assert_array_equal(ours, runtime.dequantized(q, params))


@pytest.mark.parametrize("grain", [PerTensor(), PerChannel(1), PerBlock(8, 1)], ids=str)
@pytest.mark.parametrize("kind", [UINT8, INT8, UINT16, INT16, INT4, UINT4], ids=str)
def test_float16_is_as_in_the_runtime(kind: QType, grain: Granularity) -> None:
    x = sample(3, dtype=np.float16)
    params = fitted(x, kind, grain)
    assert params.scale.dtype == np.float16
    q = kernels.quantize(x, params)
    np.testing.assert_array_equal(q.astype(np.int32), runtime.quantized(x, params))
    np.testing.assert_array_equal(kernels.dequantize(q, params), runtime.dequantized(q, params))


@pytest.mark.parametrize("kind", INTEGERS, ids=str)
def test_halves_round_to_even_as_in_the_runtime(kind: QType) -> None:
    x = np.arange(-40, 40, dtype=np.float32) / 2
    params = QParams(np.array(1, np.float32), np.array(1, kind.dtype), kind)
    np.testing.assert_array_equal(kernels.quantize(x, params).astype(np.int32), runtime.quantized(x, params))


@pytest.mark.parametrize("kind", [*INTEGERS, FLOAT8E4M3FN], ids=str)
def test_nan_infinity_and_huge_values_end_where_the_runtime_puts_them(kind: QType) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0, 449.0, 464.5, 480.0], np.float32)
    params = QParams(np.array(0.5, np.float32), np.array(0, kind.dtype), kind)
    ours = kernels.quantize(x, params).astype(np.float32)
    np.testing.assert_array_equal(ours, runtime.quantized(x, params).astype(np.float32))


def test_every_float8_is_dequantized_as_in_the_runtime() -> None:
    every = np.arange(256, dtype=np.uint8).view(FLOAT8E4M3FN.dtype)
    params = QParams(np.array(0.37, np.float32), np.array(0, FLOAT8E4M3FN.dtype), FLOAT8E4M3FN)
    np.testing.assert_array_equal(kernels.dequantize(every, params), runtime.dequantized(every, params))


@pytest.mark.parametrize("grain", [PerTensor(), PerChannel(0)], ids=str)
def test_int32_bias_is_dequantized_as_in_the_runtime(grain: Granularity) -> None:
    rng = np.random.default_rng(5)
    q = rng.integers(-(2**31), 2**31, 500, dtype=np.int64).astype(np.int32)
    shape = () if isinstance(grain, PerTensor) else (500,)
    scale = rng.uniform(1e-6, 1e-3, shape).astype(np.float32)
    params = QParams(np.asarray(scale), np.zeros(shape, np.int32), INT32, grain)
    np.testing.assert_array_equal(kernels.dequantize(q, params), runtime.dequantized(q, params))


@pytest.mark.parametrize("kind", [UINT4, INT4], ids=str)
@pytest.mark.parametrize("shape", [(6, 8), (5, 7)], ids=["even", "odd"])
def test_pack4_writes_the_bytes_that_the_runtime_reads(kind: QType, shape: tuple[int, int]) -> None:
    import onnx

    q = np.random.default_rng(6).integers(kind.qmin, kind.qmax + 1, shape).astype(np.int8)
    packed = onnx.helper.make_tensor("q", kind.onnx, shape, kernels.pack_flat(q, 4).tobytes(), raw=True)
    assert (onnx.numpy_helper.to_array(packed).astype(np.int8) == q).all()
