"""Quantize, run, compare: what the tests of planning and of the whole line share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from builders import model, node, tensor

import octavo
from octavo.core.plan import Key
from octavo.model.files import io
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import Session

Feeds = dict[str, np.ndarray]
Source = onnx.ModelProto | octavo.Result | str

EVERYWHERE = octavo.W8A8.but(placement=octavo.Placement.EVERYWHERE)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    """Normally distributed values."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def session(model: Source, *, optimize: bool = True) -> Session:
    """A model in the runtime."""
    if isinstance(model, octavo.Result):
        return Session.open(model.model, optimize=optimize)
    if isinstance(model, onnx.ModelProto):
        return Session.open(model.SerializeToString(), optimize=optimize)
    return Session.open(model, optimize=optimize)


def run(model: Source, feeds: Feeds, *, optimize: bool = True) -> Feeds:
    """The outputs of a model."""
    return session(model, optimize=optimize).run(feeds)


def feeds_for(proto: onnx.ModelProto, count: int = 4, scale: float = 2.0, **fixed: Any) -> list[Feeds]:
    """Samples that fit a model's inputs; floats are spread by ``scale``."""
    opened = session(proto)
    samples = []
    for seed in range(count):
        made = sample_inputs(opened.inputs, seed=seed)
        for name, array in made.items():
            if array.dtype.kind in "fV":
                made[name] = (array.astype(np.float32) * scale).astype(array.dtype)
        samples.append({**made, **fixed})
    return samples


def error(
    result: octavo.Result, proto: onnx.ModelProto, samples: Sequence[Feeds], *, optimize: bool = True
) -> float:
    """The largest difference to float over all outputs, as a part of the float output's largest magnitude."""
    quantized, plain = session(result, optimize=optimize), session(proto)
    worst = 0.0
    for feeds in samples:
        want, got = plain.run(feeds), quantized.run(feeds)
        for name, array in want.items():
            wide = array.astype(np.float64)
            top = max(float(np.abs(wide).max(initial=0.0)), 1e-6)
            worst = max(worst, float(np.abs(got[name].astype(np.float64) - wide).max(initial=0.0)) / top)
    return worst


def steps(
    result: octavo.Result, proto: onnx.ModelProto, samples: Sequence[Feeds], tensor: str, output: str
) -> float:
    """The largest difference of an output, in quantization steps of a tensor."""
    scale = float(result.params[Key(tensor)].scale)
    quantized, plain = session(result), session(proto)
    return max(float(np.abs(quantized.run(f)[output] - plain.run(f)[output]).max()) / scale for f in samples)


def ops(result: octavo.Result | onnx.ModelProto | ir.Model) -> Counter[str]:
    """How many nodes of each op type a model has, in all scopes."""
    found = result.model if isinstance(result, octavo.Result) else result
    graph = (found if isinstance(found, ir.Model) else io.load(found)).graph
    return Counter(n.op_type for n in graph.all_nodes())


def reason(result: octavo.Result | octavo.Plan, name: str) -> str:
    """Why a node stays float."""
    plan = result.plan if isinstance(result, octavo.Result) else result
    return next(s.reason for s in plan.skipped if s.node == name)


def listed(folder: Path) -> list[str]:
    """The names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def layers(count: int = 3, width: int = 16) -> onnx.ModelProto:
    """Linear layers ``/block_i/MatMul``, ``Add`` and ``Relu`` in a row, named as exporters do."""
    nodes, arrays, last = [], {}, "x"
    for i in range(count):
        arrays[f"w{i}"] = weights(width, width, seed=i) / 4
        arrays[f"b{i}"] = weights(width, seed=100 + i)
        nodes += [
            node("MatMul", [last, f"w{i}"], [f"m{i}"], f"/block_{i}/MatMul"),
            node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], f"/block_{i}/Add"),
            node("Relu", [f"a{i}"], [f"r{i}"], f"/block_{i}/Relu"),
        ]
        last = f"r{i}"
    return model(nodes, [tensor("x", ["batch", width])], [tensor(last, ["batch", width])], arrays)


def convolutions(count: int = 3, width: int = 8) -> onnx.ModelProto:
    """``Conv_i`` and ``Relu_i`` in a row, over 8 × 8 images."""
    nodes, arrays, last = [], {}, "x"
    for i in range(count):
        arrays[f"w{i}"] = weights(width, width, 3, 3, seed=i) / 8
        arrays[f"b{i}"] = weights(width, seed=100 + i)
        nodes += [
            node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], f"Conv_{i}", pads=[1, 1, 1, 1]),
            node("Relu", [f"c{i}"], [f"r{i}"], f"Relu_{i}"),
        ]
        last = f"r{i}"
    return model(nodes, [tensor("x", [1, width, 8, 8])], [tensor(last, [1, width, 8, 8])], arrays)
