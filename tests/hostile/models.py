"""The small models that hostile ones are made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

import octavo
from octavo.model.files import io
from octavo.model.files.wire import varint
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize

WIDTH = 32
Change = Callable[[onnx.ModelProto], Any]


def layer(weight: np.ndarray | None = None) -> onnx.ModelProto:
    """``y = relu(x · w + b)``."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) if weight is None else weight,
        "b": rng.standard_normal(WIDTH).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "product"),
        node("Add", ["m", "b"], ["a"], "sum"),
        node("Relu", ["a"], ["y"], "relu"),
    ]
    return model(nodes, [tensor("x", ["n", WIDTH])], [tensor("y", ["n", WIDTH])], arrays)


def changed(change: Change) -> onnx.ModelProto:
    """The layer after a change."""
    made = layer()
    change(made)
    return made


def feeds(count: int = 3, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Samples for the layer."""
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, WIDTH)).astype(np.float32)} for _ in range(count)]


def external(entries: Mapping[str, str], shape: tuple[int, ...] = (WIDTH, WIDTH)) -> onnx.ModelProto:
    """The layer with its weight in a file, described by these entries."""
    made = layer()
    weight = made.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.dims[:] = shape
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    return made


def nested(depth: int) -> onnx.ModelProto:
    """An If within an If within an If …"""
    made = model([], [tensor("x", [2]), tensor("c", [], TensorProto.BOOL)], [tensor("y", [2])])
    graph, output = made.graph, "y"
    for level in range(depth):
        outer = graph.node.add(op_type="If", name=f"if{level}", input=["c"], output=[output])
        other = outer.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH).g
        graph = outer.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        output = f"d{level}"
        for branch, name in ((other, f"e{level}"), (graph, output)):
            branch.name = name
            branch.output.append(tensor(name, [2]))
        other.node.add(op_type="Identity", input=["x"], output=[f"e{level}"])
    graph.node.add(op_type="Identity", input=["x"], output=[output])
    return made


def nested_bytes(depth: int) -> bytes:
    """The same in bytes, deeper than protobuf would write it."""
    inner = b""
    for _ in range(depth):
        attribute = b"\x0a\x0bthen_branch" + b"\x32" + varint(len(inner)) + inner
        branch = b"\x22\x02If" + b"\x2a" + varint(len(attribute)) + attribute
        inner = b"\x0a" + varint(len(branch)) + branch
    return b"\x08\x08\x3a" + varint(len(inner)) + inner


def written(made: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """The model in a file, without any check of the onnx package."""
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def read(source: Any, base_dir: Path | None = None) -> int:
    """Load a model, look at every weight, write calls out; gives the number of nodes."""
    loaded = io.load(source, base_dir=base_dir)
    for found in query.tensors(loaded):
        found.numpy()
    normalize(loaded)
    return len(loaded.graph)


def quantized(source: Any, out: Path, data: Any = None, **more: Any) -> list[str]:
    """Quantize into the output folder; gives the names there."""
    octavo.quantize(source, data, output=out / "model.int8.onnx", threads=1, **{"effort": "plain", **more})
    return sorted(path.name for path in out.iterdir())
