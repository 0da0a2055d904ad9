"""Each algorithm's integers against float64 arithmetic written here, and against rounding to nearest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.algorithms.weights.blocks import Algorithm
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.hqq import Hqq
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.k_quant import KQuant
from octavo.algorithms.weights.rtn import Furthest, Rtn
from octavo.core.blocks import Blocks, BlockScheme
from octavo.errors import DataError, RecipeError

PLAIN = Gptq(act_order=False)
ALL = [Furthest(), Rtn(), Hqq(), KQuant(), PLAIN]
NAMES = [type(a).__name__ for a in ALL]


def weights(rows: int = 12, columns: int = 96, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def correlated(columns: int, seed: int = 1) -> np.ndarray:
    """The products of inputs whose columns hang together."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * columns, columns // 4)) @ rng.standard_normal((columns // 4, columns))
    x += 0.1 * rng.standard_normal(x.shape)
    return x.T @ x


def real(blocks: Blocks) -> np.ndarray:
    """What the integers stand for, element by element."""
    size, middle = blocks.scheme.size, 2 ** (blocks.scheme.bits - 1)
    out = np.empty(blocks.integers.shape)
    for j in range(out.shape[1]):
        zero = middle if blocks.zero_point is None else blocks.zero_point[:, j // size].astype(np.float64)
        out[:, j] = (blocks.integers[:, j].astype(np.float64) - zero) * blocks.scale[:, j // size]
    return out


def output_error(w: np.ndarray, blocks: Blocks, products: np.ndarray) -> float:
    e = real(blocks) - w
    return float(np.einsum("ij,jk,ik->", e, products, e))


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("algorithm", ALL, ids=NAMES)
def test_values_lie_within_steps_of_the_weights(algorithm: Algorithm, bits: int, symmetric: bool) -> None:
    if isinstance(algorithm, Hqq) and symmetric:
        pytest.skip("HQQ has zero points")
    w = weights(columns=70)
    made = algorithm.blocks(w, BlockScheme(bits, 16, symmetric), np.eye(70))
    assert made.integers.dtype == np.uint8
    assert int(made.integers.max()) < 2**bits
    assert made.scale.shape == (12, 5)
    np.testing.assert_allclose(made.real(), real(made), rtol=0, atol=1e-12)
    widest = float(np.abs(made.scale.astype(np.float64)).max())
    assert float(np.abs(real(made) - w).max()) <= 1.01 * widest


@pytest.mark.parametrize("algorithm", ALL, ids=NAMES)
def test_a_block_of_zeros_stays_zero(algorithm: Algorithm) -> None:
    w = weights(columns=64)
    w[3, 16:32] = 0
    w[5] = 0
    made = algorithm.blocks(w, BlockScheme(4, 16), np.eye(64))
    assert not real(made)[3, 16:32].any()
    assert not real(made)[5].any()
    assert np.isfinite(made.scale).all()


@pytest.mark.parametrize("algorithm", ALL, ids=NAMES)
def test_scales_have_the_type_of_the_weight(algorithm: Algorithm) -> None:
    w = weights().astype(np.float16)
    made = algorithm.blocks(w, BlockScheme(4, 32), np.eye(96))
    assert made.scale.dtype == np.float16


def test_a_weight_that_is_not_finite_is_refused() -> None:
    w = weights()
    w[1, 1] = np.nan
    with pytest.raises(DataError, match="NaN"):
        Furthest().blocks(w, BlockScheme())


def test_widths_and_blocks_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RecipeError, match="bits"):
        BlockScheme(bits=9)
    with pytest.raises(RecipeError, match="block"):
        BlockScheme(size=0)
    with pytest.raises(RecipeError, match="asymmetric"):
        Hqq().blocks(weights(), BlockScheme(symmetric=True))
    with pytest.raises(DataError, match="inputs"):
        Gptq().blocks(weights(), BlockScheme())


def test_the_runtimes_symmetric_rounding_puts_the_furthest_value_on_the_lowest_integer() -> None:
    w = np.float32([[1.0, -0.5, 4.0, 2.0], [-8.0, 1.0, 2.0, 3.0]])
    made = Furthest().blocks(w, BlockScheme(4, 4, symmetric=True))
    np.testing.assert_array_equal(made.scale, [[-0.5], [1.0]])
    np.testing.assert_array_equal(real(made), w)
    assert made.integers[0, 2] == 0
    assert made.integers[1, 0] == 0


def test_a_ratio_shrinks_the_range() -> None:
    w = weights()
    whole, half = (Rtn(r).blocks(w, BlockScheme(8, 32)).scale for r in (1.0, 0.5))
    np.testing.assert_allclose(half, whole / 2, rtol=1e-6)


@pytest.mark.parametrize("whole", [True, False], ids=["integer zero points", "fractions"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq_is_no_worse_than_rounding_in_its_norm(bits: int, whole: bool) -> None:
    w = np.random.default_rng(5).standard_t(3, (16, 80)).astype(np.float32)

    def loss(algorithm: Algorithm) -> np.ndarray:
        made = algorithm.blocks(w, BlockScheme(bits, 16, whole_zero=whole))
        return (np.abs(real(made) - w) ** 0.7).reshape(16, 5, 16).sum(axis=-1)

    refined, plain = loss(Hqq()), loss(Rtn())
    assert (refined <= plain * (1 + 1e-5)).all()
    if not whole:
        assert refined.sum() < 0.99 * plain.sum()


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_k_quant_lowers_the_weighted_error_of_every_block(bits: int, symmetric: bool) -> None:
    w = weights(columns=80)
    tiles = w.reshape(12, 5, 16)
    weight = np.sqrt((tiles.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)) + np.abs(tiles)

    def loss(algorithm: Algorithm) -> np.ndarray:
        error = real(algorithm.blocks(w, BlockScheme(bits, 16, symmetric))) - w
        return (weight * error.reshape(12, 5, 16) ** 2).sum(axis=-1)

    searched, plain = loss(KQuant()), loss(Rtn())
    assert (searched <= plain * (1 + 1e-4)).all()
    assert searched.sum() < 0.97 * plain.sum()


@pytest.mark.parametrize(
    "how",
    [
        PLAIN,
        replace(PLAIN, act_order=True),
        replace(PLAIN, search=True),
        replace(PLAIN, per_row=False),
        replace(PLAIN, lazy=24),
        replace(PLAIN, weighted=True),
        Gptq(weighted=True),
    ],
    ids=[
        "plain",
        "act-order",
        "searched",
        "one scale for all rows",
        "updates within blocks",
        "weighted",
        "weighted, act-order",
    ],
)
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gptq_lowers_the_error_of_the_outputs(how: Gptq, bits: int, symmetric: bool) -> None:
    w, products = weights(), correlated(96)
    scheme = BlockScheme(bits, 32, symmetric)
    fed, plain = how.blocks(w, scheme, products), Rtn().blocks(w, scheme)
    better, worse = output_error(w, fed, products), output_error(w, plain, products)
    assert better <= worse * (1 + 1e-9)
    if how.per_row:
        assert better < 0.6 * worse


@pytest.mark.parametrize("act_order", [False, True])
def test_gptq_with_weighted_ranges_keeps_the_ranges_and_lowers_their_error(act_order: bool) -> None:
    w, products = weights(), correlated(96)
    both = Gptq(act_order=act_order, weighted=True).blocks(w, BlockScheme(4, 32), products)
    ranges = Importance().blocks(w, BlockScheme(4, 32), np.diag(products))
    np.testing.assert_array_equal(both.scale, ranges.scale)
    assert output_error(w, both, products) < 0.8 * output_error(w, ranges, products)


def test_gptq_without_correlation_is_rounding() -> None:
    w = weights()
    made, plain = (a.blocks(w, BlockScheme(4, 32), np.eye(96)) for a in (PLAIN, Rtn()))
    np.testing.assert_array_equal(made.integers, plain.integers)


def test_gptq_bears_inputs_that_never_speak_and_products_of_low_rank() -> None:
    w = weights()
    x = np.zeros((3, 96))
    x[:, :50] = np.random.default_rng(2).standard_normal((3, 50))
    products = x.T @ x
    made = PLAIN.blocks(w, BlockScheme(4, 32), products)
    assert output_error(w, made, products) <= output_error(w, Rtn().blocks(w, BlockScheme(4, 32)), products)
    silent = PLAIN.blocks(w, BlockScheme(4, 32), np.zeros((96, 96)))
    np.testing.assert_array_equal(silent.integers, Rtn().blocks(w, BlockScheme(4, 32)).integers)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 50),
    size=st.sampled_from([1, 3, 16, 32]),
    bits=st.sampled_from([2, 3, 4, 8]),
    symmetric=st.booleans(),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    seed=st.integers(0, 2**16),
)
def test_rounding_is_within_a_step_for_any_shape(
    rows: int, columns: int, size: int, bits: int, symmetric: bool, scale: float, seed: int
) -> None:
    w = (weights(rows, columns, seed) * scale).astype(np.float32)
    for algorithm in (Furthest(), Rtn()):
        made = algorithm.blocks(w, BlockScheme(bits, size, symmetric))
        step = np.repeat(np.abs(made.scale.astype(np.float64)), size, axis=1)[:, :columns]
        assert (np.abs(real(made) - w) <= 1.01 * step).all()


def test_importance_is_close_to_the_best_of_all_scales_and_zero_points() -> None:
    w, squares = weights(12, 96), np.exp(np.random.default_rng(6).normal(0, 1, 96))
    made = Importance().blocks(w, BlockScheme(4, 32), squares)
    tiles, weight = w.reshape(12, 3, 32).astype(np.float64), squares.reshape(3, 32)
    found = ((real(made).reshape(12, 3, 32) - tiles) ** 2 * weight).sum(axis=-1)
    least = np.full((12, 3), np.inf)
    for part in np.linspace(0.4, 1.1, 141):
        scale = part * np.ptp(tiles, axis=-1, keepdims=True) / 15
        for zero in range(16):
            rounded = (np.clip(np.rint(tiles / scale) + zero, 0, 15) - zero) * scale
            least = np.minimum(least, ((rounded - tiles) ** 2 * weight).sum(axis=-1))
    assert found.sum() < 1.04 * least.sum()
