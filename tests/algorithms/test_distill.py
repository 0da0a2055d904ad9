from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run

import octavo
from octavo.algorithms.layers.score_fit import Places, probabilities

from .stepping import EVERYWHERE, PER_TENSOR

Feeds = dict[str, np.ndarray]
HEAD_IN_FLOAT = EVERYWHERE.but(exclude=("last", "bias1", "softmax"))
STEPS, CLASSES, WIDTH = 12, 9, 16


def reader(*, tail: tuple[onnx.NodeProto, ...] = (), output: str = "p") -> onnx.ModelProto:
    """A text reader: features of each step, squared by a gate, and the probabilities of characters."""
    rng = np.random.default_rng(0)
    scale = 10.0 ** rng.uniform(-1, 1, WIDTH)
    arrays: dict[str, Any] = {
        "w0": (rng.standard_normal((6, WIDTH)) * scale).astype(np.float32),
        "b0": (rng.standard_normal(WIDTH) * scale).astype(np.float32),
        "w1": (rng.standard_normal((WIDTH, CLASSES)) / scale[:, None] * 0.5).astype(np.float32),
        "b1": rng.standard_normal(CLASSES).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w0"], ["m0"], "first"),
        node("Add", ["m0", "b0"], ["a0"], "bias0"),
        node("Relu", ["a0"], ["h"], "relu"),
        node("MatMul", ["h", "w1"], ["m1"], "last"),
        node("Add", ["m1", "b1"], ["z"], "bias1"),
        *(tail or (node("Softmax", ["z"], ["p"], "softmax", axis=-1),)),
    ]
    return model(nodes, [tensor("x", ["n", STEPS, 6])], [tensor(output, None)], arrays)


def lines(count: int, seed: int) -> list[Feeds]:
    """Inputs whose steps lie around a few points, as those of a text's margins and letters do."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(1).standard_normal((4, 6))
    kinds = rng.integers(0, 4, (count, STEPS))
    noise = 0.2 * rng.standard_normal((count, STEPS, 6))
    return [{"x": (points[k] + n)[None].astype(np.float32)} for k, n in zip(kinds, noise, strict=True)]


def divergence(proto: onnx.ModelProto, result: octavo.Result, feeds: list[Feeds], axis: int = -1) -> float:
    """The mean Kullback-Leibler divergence of the probabilities from float's, in float64."""
    found = []
    for one in feeds:
        p, q = (run(m, one)["p"].astype(np.float64) for m in (proto, result))
        found.append(np.sum(p * (np.log(p + 1e-30) - np.log(q + 1e-30)), axis=axis).mean())
    return float(np.mean(found))


@pytest.mark.parametrize(("recipe", "share"), [(EVERYWHERE, 0.8), (PER_TENSOR, 0.8), (HEAD_IN_FLOAT, 0.96)])
def test_probabilities_of_new_samples_come_closer_to_float(recipe: octavo.Recipe, share: float) -> None:
    proto, fresh = reader(), lines(40, seed=5)
    plain = octavo.quantize(proto, lines(48, seed=3), recipe=recipe)
    fitted = octavo.quantize(proto, lines(48, seed=3), recipe=recipe.but(steps=("distill",)))
    (report,) = fitted.steps
    assert [change.layer for change in report.changed] == ["last"]
    assert divergence(proto, fitted, fresh) < share * divergence(proto, plain, fresh)


def test_a_convolution_in_front_of_a_softmax_over_channels_is_fitted_too() -> None:
    """The same reader with steps as positions of a feature map."""
    made = {one.name: onnx.numpy_helper.to_array(one) for one in reader().graph.initializer}
    arrays = {name: array.T[..., None, None] if name[0] == "w" else array for name, array in made.items()}
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["a0"], "first"),
        node("Relu", ["a0"], ["h"], "relu"),
        node("Conv", ["h", "w1", "b1"], ["z"], "last"),
        node("Softmax", ["z"], ["p"], "softmax", axis=1),
    ]
    proto = model(nodes, [tensor("x", [1, 6, 3, 4])], [tensor("p", None)], arrays)
    maps = [
        [{"x": f["x"].transpose(0, 2, 1).reshape(1, 6, 3, 4)} for f in lines(48, seed)] for seed in (3, 5)
    ]
    plain = octavo.quantize(proto, maps[0], recipe=EVERYWHERE)
    fitted = octavo.quantize(proto, maps[0], recipe=EVERYWHERE.but(steps=("distill",)))
    assert divergence(proto, fitted, maps[1], axis=1) < 0.9 * divergence(proto, plain, maps[1], axis=1)


def test_scores_that_other_operators_read_are_left_alone() -> None:
    gate = (node("Softmax", ["z"], ["s"], "softmax", axis=-1), node("Mul", ["s", "z"], ["p"], "gate"))
    result = octavo.quantize(reader(tail=gate), lines(24, seed=3), recipe=EVERYWHERE.but(steps=("distill",)))
    assert str(result.steps[0]) == "distill: nothing to change"


def test_a_softmax_over_steps_is_no_softmax_over_classes() -> None:
    over = (node("Softmax", ["z"], ["p"], "softmax", axis=1),)
    result = octavo.quantize(reader(tail=over), lines(24, seed=3), recipe=EVERYWHERE.but(steps=("distill",)))
    assert "not over its outputs" in str(result.steps[0])


def test_data_that_can_be_read_once_leaves_the_layer_as_it_is() -> None:
    result = octavo.quantize(reader(), iter(lines(24, seed=3)), recipe=EVERYWHERE.but(steps=("distill",)))
    assert "can't be read again" in str(result.steps[0])


def places(features: np.ndarray, wanted: np.ndarray, found: np.ndarray) -> Places:
    gathered = Places()
    for sample in zip(features, wanted, found, strict=True):
        gathered.add(*sample)
    return gathered


def test_shifts_of_classes_are_found_to_their_size() -> None:
    rng = np.random.default_rng(0)
    features, wanted = rng.standard_normal((40, 50, 4)), rng.standard_normal((40, 50, 3))
    shift = np.array([0.4, 0.0, -0.3])
    problem = places(features, wanted, wanted + shift).problem()
    assert problem is not None
    change = problem.change()
    assert change is not None
    found = change.bias - change.bias[1]
    np.testing.assert_allclose(found, shift[1] - shift, atol=0.02)
    assert np.abs(change.weights).max() < 0.02
    assert change.after < 0.01 * change.before


def test_noise_is_not_fitted() -> None:
    rng = np.random.default_rng(1)
    features, wanted = rng.standard_normal((24, 20, 8)), 2 * rng.standard_normal((24, 20, 5))
    problem = places(features, wanted, wanted + 0.3 * rng.standard_normal(wanted.shape)).problem()
    assert problem is not None
    assert problem.change() is None


def test_the_change_is_the_minimum_of_the_divergence() -> None:
    """Around it the penalized sum, computed independently, does not fall in any direction."""
    rng = np.random.default_rng(2)
    features, wanted = rng.standard_normal((16, 30, 3)), 1.5 * rng.standard_normal((16, 30, 4))
    tilt = 0.5 * rng.standard_normal((3, 4))
    problem = places(features, wanted, wanted + features @ tilt).problem()
    assert problem is not None
    change = problem.change()
    assert change is not None
    scores = (wanted + features @ tilt).reshape(-1, 4)
    p, flat = probabilities(wanted.reshape(-1, 4)), features.reshape(-1, 3)

    def loss(weights: np.ndarray) -> float:
        z = scores + flat @ weights.T + change.bias
        log_q = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
        return float(np.sum(p * (np.log(p) - log_q)))

    before, least = loss(np.zeros((4, 3))), loss(change.weights)
    assert least < 0.02 * before
    for _ in range(20):
        other = change.weights + 0.1 * rng.standard_normal(change.weights.shape)
        assert loss(other) > least
