from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import octavo
from octavo.algorithms.layers.error_feedback import Grid, fed_back, nearest, upper_factor
from octavo.algorithms.layers.input_moments import InputMoments
from octavo.algorithms.layers.weight_error import WeightError, rounded_rows
from octavo.algorithms.steps.rounding import Rounding
from octavo.algorithms.weights.gptq import Gptq
from octavo.core.arrays import HOST, Arrays, Cupy, Torch, arrays
from octavo.core.blocks import BlockScheme
from octavo.errors import DataError, RecipeError

from .nets import conv_chain, images
from .stepping import EVERYWHERE


def stand_in(devices: int = 1) -> ModuleType:
    """numpy under the name of CuPy, which speaks as it does."""
    module = ModuleType("cupy")
    module.__dict__.update(np.__dict__)
    module.asnumpy = np.asarray  # type: ignore[attr-defined]
    module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: devices))  # type: ignore[attr-defined]
    return module


@pytest.fixture(params=["cupy", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Arrays:
    if request.param == "torch":
        pytest.importorskip("torch")
        return Torch("cpu")
    monkeypatch.setitem(sys.modules, "cupy", stand_in())
    return arrays("gpu")


def problem(groups: int, outputs: int, products: int) -> tuple[np.ndarray, Grid, InputMoments]:
    rng = np.random.default_rng(0)
    x = (
        rng.standard_normal((groups, 3 * products, products)) @ rng.standard_normal((products, products))
        + 0.5
    )
    gram = x.swapaxes(1, 2) @ x / x.shape[1]
    rows = rng.standard_normal((groups, outputs, products))
    scale = np.abs(rows).max(axis=2, keepdims=True) / 7
    moments = InputMoments(x.shape[1], x.mean(axis=1), (x**2).mean(axis=1), gram)
    return rows, Grid(scale, np.zeros_like(scale), -7, 7), moments


@pytest.mark.parametrize("groups, outputs, products", [(1, 10, 70), (5, 1, 9), (2, 4, 16)])
def test_every_library_rounds_the_same(library: Arrays, groups: int, outputs: int, products: int) -> None:
    rows, grid, moments = problem(groups, outputs, products)
    found = [
        rounded_rows(
            rows,
            grid,
            WeightError.of(moments, 0.1, xp, factor=True),
            np.zeros_like(grid.scale),
            together=False,
        )
        for xp in (HOST, library)
    ]
    np.testing.assert_allclose(found[1].stored, found[0].stored, atol=1e-5)
    np.testing.assert_allclose(found[1].after, found[0].after, rtol=1e-3)
    assert found[0].after.sum() < 0.8 * found[0].before.sum()


def test_errors_are_those_of_the_rows_in_float64() -> None:
    rows, grid, moments = problem(1, 10, 70)
    found = rounded_rows(rows, grid, WeightError.of(moments, 0.1, HOST, factor=True), None, together=False)
    for stored, error in ((found.stored, found.after), (nearest(rows, grid), found.before)):
        delta = stored.astype(np.float64)[0] - rows[0]
        np.testing.assert_allclose(error[0], ((delta @ moments.gram[0]) * delta).sum(axis=1), rtol=1e-3)  # type: ignore[index]


@pytest.mark.parametrize("products", [1, 5, 64, 65, 200])
def test_the_factor_times_itself_is_the_matrix(products: int) -> None:
    _, _, moments = problem(2, 1, products)
    assert moments.gram is not None
    upper = upper_factor(moments.gram)
    np.testing.assert_allclose(upper @ upper.swapaxes(1, 2), moments.gram, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(upper, np.triu(upper))
    assert (np.diagonal(upper, axis1=1, axis2=2) > 0).all()


def test_a_matrix_without_a_factor_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="no usable Gram matrix"):
        upper_factor(-np.eye(3)[None])


def test_nan_of_a_gpu_is_an_error_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", stand_in())
    with pytest.raises(DataError, match="no usable Gram matrix"):
        Cupy()._checked(np.array([np.nan]))


def test_a_zero_point_moves_the_grid() -> None:
    rows, zero = np.array([[[0.1, 0.9, 2.7]]]), np.full((1, 1, 1), -2.0)
    grid = Grid(np.full((1, 1, 1), 0.5), zero, 0, 3)
    np.testing.assert_allclose(nearest(rows, grid), [[[1.0, 1.0, 2.5]]])
    fed, _ = fed_back(rows, grid, upper_factor(np.eye(3)[None]))
    np.testing.assert_allclose(fed, nearest(rows, grid))


def test_without_a_gpu_gpu_is_refused_and_auto_is_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", stand_in(devices=0))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert arrays("auto") is HOST and arrays("cpu") is HOST
    with pytest.raises(RecipeError, match="install CuPy"):
        octavo.quantize(
            conv_chain(), images(2), recipe=EVERYWHERE.but(steps=("rounding:device=gpu",)), engine="serial"
        )


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(RecipeError, match="Known: cpu, gpu, auto"):
        Rounding(device="tpu")


def test_a_model_is_rounded_by_another_library_as_by_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", stand_in())
    one, other = (
        octavo.quantize(conv_chain(), images(4), recipe=EVERYWHERE.but(steps=(step,)), engine="serial")
        for step in ("rounding", "rounding:device=gpu")
    )
    assert other.steps[0].fall == pytest.approx(one.steps[0].fall, rel=1e-3)


@pytest.mark.parametrize(
    "how",
    [Gptq(), Gptq(weighted=True), Gptq(act_order=False, per_row=False, lazy=24)],
    ids=["act-order", "weighted, act-order", "one scale for all rows"],
)
def test_every_library_gives_the_same_integers_by_gptq(
    library: Arrays, how: Gptq, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((20, 200)).astype(np.float32)
    x = rng.standard_normal((400, 200)) @ rng.standard_normal((200, 200))
    expected = how.blocks(rows, BlockScheme(4, 32), x.T @ x)
    monkeypatch.setattr("octavo.algorithms.weights.gptq.arrays", lambda device: library)
    made = how.blocks(rows, BlockScheme(4, 32), x.T @ x)
    np.testing.assert_allclose(made.scale, expected.scale, rtol=1e-6)
    assert (made.integers != expected.integers).mean() < 0.01  # a tie that falls the other way moves others


def test_gptq_refuses_an_unknown_device() -> None:
    with pytest.raises(RecipeError, match="gptq:device=tpu is not a device"):
        Gptq(device="tpu")
