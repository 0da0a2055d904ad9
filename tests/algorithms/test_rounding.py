from __future__ import annotations

import numpy as np
import pytest
from builders import model, node, tensor

import octavo
from octavo.algorithms.layers.error_feedback import Grid, fed_back, nearest, upper_factor
from octavo.algorithms.layers.input_moments import InputMoments
from octavo.core.qtypes import INT4

from .nets import conv_chain, images
from .stepping import EVERYWHERE, PER_TENSOR, error

FRESH = images(4, seed=7)


def correlated(rows: int, size: int, seed: int = 0) -> np.ndarray:
    """Vectors whose entries go together."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, size)) @ rng.standard_normal((size, size)) * 0.3 + 0.5


def test_feedback_makes_less_error_than_rounding_to_nearest() -> None:
    x = correlated(500, 24)
    w = np.random.default_rng(1).standard_normal((1, 10, 24))
    grid = Grid(np.abs(w).max(axis=2, keepdims=True) / 7, np.zeros((1, 10, 1)), -7, 7)
    gram = (x.T @ x / len(x))[None]
    fed, _ = fed_back(w, grid, upper_factor(gram + 0.01 * np.eye(24)))
    plain = np.mean((x @ (nearest(w, grid) - w)[0].T) ** 2)
    assert np.mean((x @ (fed - w)[0].T) ** 2) < 0.7 * plain
    steps = fed / grid.scale
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)
    assert np.abs(steps).max() < 7.01


def test_feedback_by_halves_is_the_plain_recursion() -> None:
    x = correlated(900, 150)
    w = np.random.default_rng(1).standard_normal((1, 4, 150))
    grid = Grid(np.full((1, 4, 1), 0.2), np.zeros((1, 4, 1)), -15, 15)
    gram = x.T @ x / len(x) + np.eye(150)
    upper = np.linalg.cholesky(np.linalg.inv(gram)).T
    work, expected = w[0].copy(), np.empty((4, 150))
    for j in range(150):
        expected[:, j] = np.clip(np.rint(work[:, j] / 0.2), -15, 15) * 0.2
        work[:, j + 1 :] -= np.outer((work[:, j] - expected[:, j]) / upper[j, j], upper[j, j + 1 :])
    fed, loss = fed_back(w, grid, upper_factor(gram[None]))
    np.testing.assert_allclose(fed[0], expected, atol=1e-9)
    error = w[0] - expected
    np.testing.assert_allclose(loss[0], ((error @ gram) * error).sum(axis=1))


def test_the_error_of_weights_is_that_of_the_outputs() -> None:
    x = correlated(300, 6)
    delta = np.random.default_rng(2).standard_normal((1, 3, 6))
    moments = InputMoments(300, x.mean(0)[None], (x**2).mean(0)[None], (x.T @ x / 300)[None])
    np.testing.assert_allclose(moments.error(delta)[0], ((x @ delta[0].T) ** 2).mean(0))


@pytest.mark.parametrize("recipe", [EVERYWHERE, PER_TENSOR], ids=["per-channel", "per-tensor"])
def test_the_error_of_the_quantized_model_falls(recipe: octavo.Recipe) -> None:
    proto, samples = conv_chain("Relu", decades=1.0), images(16)
    four = recipe.but(weights=recipe.weights.but(qtype=INT4))
    assert error(proto, samples, FRESH, four.but(steps=("rounding",))) < 0.8 * error(
        proto, samples, FRESH, four
    )


def test_the_same_weights_take_the_same_room() -> None:
    proto = conv_chain("Relu")
    plain = octavo.quantize(proto, images(), recipe=EVERYWHERE)
    result = octavo.quantize(proto, images(), recipe=EVERYWHERE.but(steps=("rounding",)))
    assert result.bytes == plain.bytes
    assert [n.op_type for n in result.model.graph] == [n.op_type for n in plain.model.graph]
    (report,) = result.steps
    assert report.changed and all(change.after < change.before for change in report.changed)


def test_linear_layers_are_rounded_too() -> None:
    rng = np.random.default_rng(4)
    x = correlated(64, 40).astype(np.float32)
    arrays = {"w": rng.standard_normal((40, 24)).astype(np.float32), "b": np.ones(24, np.float32)}
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], "fc")]
    proto = model(nodes, [tensor("x", ["n", 40])], [tensor("y", ["n", 24])], arrays)
    recipe = EVERYWHERE.but(weights=EVERYWHERE.weights.but(qtype=INT4))
    samples, fresh = [{"x": x[:48]}], [{"x": x[48:]}]
    rounded = error(proto, samples, fresh, recipe.but(steps=("rounding",)))
    assert rounded < 0.8 * error(proto, samples, fresh, recipe)
