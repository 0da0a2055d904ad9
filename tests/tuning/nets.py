"""A small model with Convs and linear layers, and samples for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor

Feed = dict[str, Any]


def conv_and_linear(classes: int = 5) -> onnx.ModelProto:
    """Two Convs with Relu, pooling, two linear layers: logits of some classes."""
    rng = np.random.default_rng(3)
    arrays = {
        "k0": rng.normal(size=(16, 3, 3, 3)).astype(np.float32) / 5,
        "k": rng.normal(size=(32, 16, 3, 3)).astype(np.float32) / 12,
        "w1": rng.normal(size=(32, 32)).astype(np.float32) / 4,
        "b1": rng.normal(size=32).astype(np.float32) / 4,
        "w2": rng.normal(size=(32, classes)).astype(np.float32) / 5,
    }
    nodes = [
        node("Conv", ["x", "k0"], ["c0"], "stem", pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"], "relu0"),
        node("Conv", ["r0", "k"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"], "relu"),
        node("GlobalAveragePool", ["r"], ["g"], "pool"),
        node("Flatten", ["g"], ["f"], "flat"),
        node("MatMul", ["f", "w1"], ["m1"], "first"),
        node("Add", ["m1", "b1"], ["a1"], "bias"),
        node("Relu", ["a1"], ["h"], "relu2"),
        node("MatMul", ["h", "w2"], ["logits"], "second"),
    ]
    return model(nodes, [tensor("x", ["n", 3, 8, 8])], [tensor("logits", ["n", classes])], arrays)


def samples(count: int) -> list[Feed]:
    """Images of noise, each with its own mean."""
    rng = np.random.default_rng(7)
    return [
        {"x": (rng.normal(size=(1, 3, 8, 8)) + rng.normal(size=(1, 3, 1, 1))).astype(np.float32)}
        for _ in range(count)
    ]


def many_convs(count: int) -> onnx.ModelProto:
    """Convs with Relu, one after the other."""
    rng = np.random.default_rng(5)
    arrays = {"k0": rng.normal(size=(8, 3, 3, 3)).astype(np.float32) / 5}
    arrays |= {f"k{i}": rng.normal(size=(8, 8, 3, 3)).astype(np.float32) / 6 for i in range(1, count)}
    nodes = []
    for i in range(count):
        read = f"r{i - 1}" if i else "x"
        nodes.append(node("Conv", [read, f"k{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"))
    last = f"r{count - 1}"
    return model(nodes, [tensor("x", ["n", 3, 8, 8])], [tensor(last, ["n", 8, 8, 8])], arrays)
