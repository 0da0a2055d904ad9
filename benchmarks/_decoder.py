"""A float decoder of the GPT kind, of any size, written to disk piece by piece.

Token ids go through an embedding (Gather), layers of LayerNormalization, attention without a mask and a
GELU feed-forward part, and an output projection. Linear layers are MatMul + Add, as exporters write them.
The weights are random and seeded, and lie in one external data file; no more than one piece of them is in
memory at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PIECE = 4 << 20  # floats written at a time


@dataclass(frozen=True)
class Size:
    """The dimensions of a model of at least so many gigabytes."""

    width: int
    layers: int
    vocabulary: int
    heads: int

    @classmethod
    def of(cls, gigabytes: float) -> Size:
        width = 2048 if gigabytes >= 1 else 512
        vocabulary = 4 * width
        layer_bytes, table_bytes = 4 * 12 * width**2, 4 * vocabulary * width
        return cls(
            width,
            max(1, math.ceil((gigabytes * 1e9 - 2 * table_bytes) / layer_bytes)),
            vocabulary,
            width // 64,
        )


class Writer:
    """Nodes and weights of the model; weights go straight to the external data file."""

    def __init__(self, data: Path) -> None:
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._location = data.name
        self._file = data.open("wb")

    def weight(self, name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> str:
        import onnx
        from onnx.external_data_helper import set_external_data

        count, offset = math.prod(shape), self._file.tell()
        rng = np.random.default_rng(len(self.initializers))
        for start in range(0, count, PIECE):
            piece = rng.standard_normal(min(PIECE, count - start), dtype=np.float32)
            (piece * np.float32(deviation) + np.float32(mean)).tofile(self._file)
        tensor = onnx.TensorProto(name=name, data_type=onnx.TensorProto.FLOAT, dims=shape, raw_data=b"")
        set_external_data(tensor, self._location, offset, 4 * count)
        tensor.ClearField("raw_data")
        self.initializers.append(tensor)
        return name

    def constant(self, name: str, value: Any, dtype: Any) -> str:
        from onnx import numpy_helper

        self.initializers.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(self, op_type: str, inputs: list[str], output: str, **attributes: Any) -> str:
        from onnx import helper

        self.nodes.append(helper.make_node(op_type, inputs, [output], output, **attributes))
        return output

    def linear(self, x: str, name: str, inputs: int, outputs: int, deviation: float = 0.02) -> str:
        weight = self.weight(f"{name}.weight", (inputs, outputs), deviation)
        bias = self.weight(f"{name}.bias", (outputs,), 0.02)
        return self.node("Add", [self.node("MatMul", [x, weight], f"{name}.matmul"), bias], name)

    def norm(self, x: str, name: str, width: int) -> str:
        scale, shift = (
            self.weight(f"{name}.scale", (width,), 0.1, mean=1.0),
            self.weight(f"{name}.shift", (width,), 0.02),
        )
        return self.node("LayerNormalization", [x, scale, shift], name, axis=-1)

    def close(self) -> None:
        self._file.close()


def attention(w: Writer, x: str, name: str, size: Size, deviation: float) -> str:
    """Softmax(q kᵀ / √d) v over the heads, and the output projection."""
    heads = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        projected = w.linear(x, f"{name}.{part}", size.width, size.width)
        split = w.node("Reshape", [projected, "to_heads"], f"{name}.{part}.split")
        heads[part] = w.node("Transpose", [split], f"{name}.{part}.heads", perm=order)
    scores = w.node("MatMul", [heads["q"], heads["k"]], f"{name}.scores")
    weights = w.node(
        "Softmax", [w.node("Mul", [scores, "attention_scale"], f"{name}.scaled")], f"{name}.softmax", axis=-1
    )
    mixed = w.node("MatMul", [weights, heads["v"]], f"{name}.mixed")
    merged = w.node("Transpose", [mixed], f"{name}.merged", perm=[0, 2, 1, 3])
    joined = w.node("Reshape", [merged, "from_heads"], f"{name}.joined")
    return w.linear(joined, f"{name}.out", size.width, size.width, deviation)


def feed_forward(w: Writer, x: str, name: str, size: Size, deviation: float) -> str:
    """Linear, GELU (written with Erf), linear."""
    up = w.linear(x, f"{name}.up", size.width, 4 * size.width)
    erf = w.node("Erf", [w.node("Div", [up, "root_two"], f"{name}.div")], f"{name}.erf")
    gate = w.node("Mul", [up, w.node("Add", [erf, "one"], f"{name}.shifted")], f"{name}.gate")
    return w.linear(
        w.node("Mul", [gate, "half"], f"{name}.gelu"), f"{name}.down", 4 * size.width, size.width, deviation
    )


def write_model(path: Path, size: Size) -> None:
    import onnx
    from onnx import helper

    w = Writer(path.with_suffix(".data"))
    head_width = size.width // size.heads
    w.constant("to_heads", [0, 0, size.heads, head_width], np.int64)
    w.constant("from_heads", [0, 0, size.width], np.int64)
    for name, value in {
        "attention_scale": head_width**-0.5,
        "root_two": 2**0.5,
        "one": 1,
        "half": 0.5,
    }.items():
        w.constant(name, value, np.float32)
    # As GPT-2 does, so that the residual stream keeps its size over the layers.
    deviation = 0.02 / math.sqrt(2 * size.layers)
    x = w.node("Gather", [w.weight("embedding", (size.vocabulary, size.width), 0.1), "input_ids"], "embedded")
    for layer in range(size.layers):
        name = f"layer{layer}"
        mixed = attention(w, w.norm(x, f"{name}.norm1", size.width), f"{name}.attention", size, deviation)
        x = w.node("Add", [x, mixed], f"{name}.residual1")
        wide = feed_forward(w, w.norm(x, f"{name}.norm2", size.width), f"{name}.mlp", size, deviation)
        x = w.node("Add", [x, wide], f"{name}.residual2")
    table = w.weight("head", (size.width, size.vocabulary), 0.02)
    w.node("MatMul", [w.norm(x, "final_norm", size.width), table], "logits")
    w.close()
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        w.nodes,
        "decoder",
        [tensor("input_ids", onnx.TensorProto.INT64, ["batch", "sequence"])],
        [tensor("logits", onnx.TensorProto.FLOAT, ["batch", "sequence", size.vocabulary])],
        w.initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
