"""Small models that quantize badly, for tests of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor

Feeds = dict[str, np.ndarray]


def spread(rng: np.random.Generator, count: int, decades: float) -> np.ndarray:
    """Factors spread evenly over some powers of ten."""
    return (10.0 ** rng.uniform(-decades / 2, decades / 2, count)).astype(np.float32)


def conv_chain(
    activation: str = "Relu", *, seed: int = 0, decades: float = 2.0, gain: float = 1.0
) -> onnx.ModelProto:
    """Conv 1 × 1, activation, depthwise Conv, activation, Conv 1 × 1, with channels of very unlike size."""
    rng = np.random.default_rng(seed)
    wide = 24
    s, t = (spread(rng, wide, decades) * np.float32(gain) for _ in range(2))
    arrays: dict[str, Any] = {
        "w0": (rng.standard_normal((wide, 8, 1, 1)) * s[:, None, None, None] * 0.4).astype(np.float32),
        "b0": (rng.standard_normal(wide) * s * 0.2).astype(np.float32),
        "w1": (rng.standard_normal((wide, 1, 3, 3)) / (s / t)[:, None, None, None] * 0.4).astype(np.float32),
        "b1": (rng.standard_normal(wide) * t * 0.2).astype(np.float32),
        "w2": (rng.standard_normal((16, wide, 1, 1)) / t[None, :, None, None] * 0.3).astype(np.float32),
        "b2": rng.standard_normal(16).astype(np.float32),
        "slope": rng.uniform(0.05, 0.5, (wide, 1, 1)).astype(np.float32),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    extra = {"Clip": ["zero", "six"], "PRelu": ["slope"]}.get(activation, [])
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], "first"),
        node(activation, ["c0", *extra], ["a0"], "act0"),
        node("Conv", ["a0", "w1", "b1"], ["c1"], "middle", group=wide, pads=[1, 1, 1, 1]),
        node(activation, ["c1", *extra], ["a1"], "act1"),
        node("Conv", ["a1", "w2", "b2"], ["y"], "last"),
    ]
    used = {name for one in nodes for name in one.input}
    return model(
        nodes,
        [tensor("x", ["n", 8, 10, 10])],
        [tensor("y", ["n", 16, 10, 10])],
        {name: array for name, array in arrays.items() if name in used},
    )


def images(count: int = 8, seed: int = 1) -> list[Feeds]:
    """Inputs of :func:`conv_chain`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 8, 10, 10)).astype(np.float32)} for _ in range(count)]


def outlier_block(*, seed: int = 0, tail: str = "") -> onnx.ModelProto:
    """LayerNormalization with outlier channels, read by two linear layers; their gated product by a third."""
    rng = np.random.default_rng(seed)
    wide = 32
    gamma = np.ones(wide, np.float32)
    gamma[[3, 17]] = 40.0
    arrays = {
        "gamma": gamma,
        "beta": (rng.standard_normal(wide) * 0.1).astype(np.float32),
        "wq": (rng.standard_normal((wide, 48)) * 0.2).astype(np.float32),
        "bq": rng.standard_normal(48).astype(np.float32),
        "wk": (rng.standard_normal((wide, 48)) * 0.2 * spread(rng, 48, 2.0)).astype(np.float32),
        "wo": (rng.standard_normal((48, 16)) * 0.2).astype(np.float32),
    }
    arrays["wq"][[3, 17]] *= 0.05
    arrays["wk"][[3, 17]] *= 0.05
    nodes = [
        node("LayerNormalization", ["x", "gamma", "beta"], ["h"], "norm", axis=-1),
        node("MatMul", ["h", "wq"], ["q0"], "q"),
        node("Add", ["q0", "bq"], ["q1"], "q_bias"),
        node("Sigmoid", ["q1"], ["gate"], "gate"),
        node("MatMul", ["h", "wk"], ["k"], "k"),
        node("Mul", ["gate", "k"], ["p"], "mul"),
        node("MatMul", ["p", "wo"], ["y"], "o"),
    ]
    outputs = [tensor("y", ["n", 5, 16])]
    if tail == "residual":
        nodes.append(node("Relu", ["h"], ["r"], "other"))
        outputs.append(tensor("r", ["n", 5, wide]))
    return model(nodes, [tensor("x", ["n", 5, wide])], outputs, arrays)


def sentences(count: int = 12, seed: int = 1) -> list[Feeds]:
    """Inputs of :func:`outlier_block`."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 5, 32)).astype(np.float32)} for _ in range(count)]
