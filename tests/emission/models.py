"""Small models for the emitters, and a way to run what they write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from builders import model, node, tensor

import octavo
from octavo.core.recipe import Placement, Recipe
from octavo.model.runtime.session import Session
from octavo.result import Result

Array = np.ndarray[Any, Any]
Feeds = list[dict[str, Array]]
EVERYWHERE = octavo.W8A8.but(placement=Placement.EVERYWHERE)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (rng(seed).standard_normal(shape) * scale).astype(np.float32)


def feeds(shape: Sequence[int], name: str = "x", count: int = 4) -> Feeds:
    return [{name: normal(*shape, seed=seed)} for seed in range(count)]


IMAGE = (1, 4, 8, 8)


def two_convs(*, clamp: str | None = "Relu", shared_bias: bool = False) -> onnx.ModelProto:
    """Conv, a clamp, Conv."""
    arrays = {
        "w1": normal(8, 4, 3, 3, seed=1, scale=0.3),
        "b1": normal(8, seed=2),
        "w2": normal(8, 8, 3, 3, seed=3, scale=0.2),
        "b2": normal(8, seed=4),
    }
    nodes = [node("Conv", ["x", "w1", "b1"], ["a"], "first", pads=[1] * 4)]
    last = "a"
    if clamp is not None:
        nodes.append(node(clamp, ["a"], ["r"], "clamp"))
        last = "r"
    nodes.append(node("Conv", [last, "w2", "b1" if shared_bias else "b2"], ["y"], "second"))
    return model(nodes, [tensor("x", IMAGE)], [tensor("y", None)], arrays)


def quantize(source: onnx.ModelProto, data: Feeds | None, recipe: Recipe = EVERYWHERE, **more: Any) -> Result:
    return octavo.quantize(source, data, recipe=recipe, **more)


def run(source: Any, data: Feeds, *, optimize: bool = True) -> Array:
    """The first output on all feeds, joined."""
    content = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
    session = Session.open(content, optimize=optimize, threads=1)
    return np.concatenate([next(iter(session.run(feed).values())).reshape(-1) for feed in data])


def sqnr(signal: Array, other: Array) -> float:
    noise = float(np.sum((signal.astype(np.float64) - other.astype(np.float64)) ** 2))
    return 200.0 if noise == 0.0 else 10.0 * np.log10(float(np.sum(signal.astype(np.float64) ** 2)) / noise)


def is_close(result: Result, source: onnx.ModelProto, data: Feeds, decibels: float = 25.0) -> bool:
    """Whether a result answers as the float model does, with the runtime's optimizations and without."""
    wanted = run(source, data, optimize=False)
    return all(sqnr(wanted, run(result.model, data, optimize=o)) >= decibels for o in (True, False))


def initializers(result: Result) -> dict[str, ir.Value]:
    return dict(result.model.graph.initializers)


def content(result: Result, name: str) -> Array:
    tensor = initializers(result)[name].const_value
    assert tensor is not None
    return np.asarray(tensor.numpy())


def ops(result: Result) -> list[str]:
    return [n.op_type for n in result.model.graph.all_nodes()]


def named(result: Result, name: str) -> ir.Node:
    return next(n for n in result.model.graph.all_nodes() if n.name == name)
