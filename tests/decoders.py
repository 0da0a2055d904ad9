"""Tiny language models with a cache, in the shapes that exporters write; their weights are seeded."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

VOCABULARY, WIDTH, HEADS, LAYERS, WIDE = 96, 64, 2, 2, 128
SIZE = WIDTH // HEADS
CONTRIB = "com.microsoft"


def weights(*, tied: bool = False) -> dict[str, np.ndarray]:
    """The weights of all shapes; tables and matrices with a few large input channels, as real models have."""
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        made = random.standard_normal((rows, columns)) * rows**-0.5
        return (made * np.exp(random.normal(0, 0.5, (rows, 1)))).astype(np.float32)

    found = {"embed": (random.standard_normal((VOCABULARY, WIDTH)) * 0.7).astype(np.float32)}
    for layer in range(LAYERS):
        for name in ("q", "k", "v", "o"):
            found[f"l{layer}.{name}"] = matrix(WIDTH, WIDTH)
        found[f"l{layer}.up"], found[f"l{layer}.down"] = matrix(WIDTH, WIDE), matrix(WIDE, WIDTH)
        found[f"l{layer}.norm1"] = found[f"l{layer}.norm2"] = np.exp(random.normal(0, 0.3, WIDTH)).astype(
            np.float32
        )
    if not tied:
        found["head"] = np.float32(0.3) * matrix(WIDTH, VOCABULARY)
    return found


def _cache(*, past: bool) -> list[Any]:
    prefix, length = ("past_key_values", "past") if past else ("present", "total")
    return [
        tensor(f"{prefix}.{layer}.{part}", ["batch", HEADS, length, SIZE])
        for layer in range(LAYERS)
        for part in ("key", "value")
    ]


class _Nodes:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, Any] = {}

    def op(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(node(kind, inputs, [output], output, **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        self.arrays[name] = value
        return name


def _mlp(n: _Nodes, x: str, layer: int) -> str:
    up = n.op("MatMul", [x, f"l{layer}.up"], f"l{layer}/up")
    return n.op("MatMul", [n.op("Tanh", [up], f"l{layer}/act"), f"l{layer}.down"], f"l{layer}/down")


def _head(n: _Nodes, x: str, *, tied: bool) -> None:
    head = n.op("Transpose", ["embed"], "head/transposed", perm=[1, 0]) if tied else "head"
    n.op("MatMul", [x, head], "logits")


def primitive_decoder(*, tied: bool = False, opset: int = 17) -> onnx.ModelProto:
    """Attention out of primitives, as Optimum exports it: input_ids, attention_mask, position_ids, cache."""
    n = _Nodes()
    n.arrays = dict(weights(tied=tied))
    n.constant("heads", np.array([0, 0, HEADS, SIZE]))
    n.constant("joined", np.array([0, 0, WIDTH]))
    n.constant("scale", np.float32(SIZE**-0.5))
    n.constant("lowest", np.float32(-1e9))
    n.constant("zero", np.int64(0))
    n.constant("one", np.int64(1))
    n.constant("first", np.array([1]))
    n.constant("bias", np.zeros(WIDTH, np.float32))
    total = n.op("Gather", [n.op("Shape", ["attention_mask"], "mask/shape"), "one"], "total")
    keys = n.op("Range", ["zero", total, "one"], "keys")
    unseen = n.op(
        "Greater",
        [keys, n.op("Unsqueeze", ["position_ids", n.constant("axis", np.array([2]))], "places")],
        "later",
    )
    unseen = n.op("Unsqueeze", [unseen, "first"], "unseen")
    x = n.op("Gather", ["embed", "input_ids"], "embedded")
    for layer in range(LAYERS):
        h = n.op("LayerNormalization", [x, f"l{layer}.norm1", "bias"], f"l{layer}/norm1", axis=-1)
        parts = {}
        for name in "qkv":
            made = n.op("MatMul", [h, f"l{layer}.{name}"], f"l{layer}/{name}")
            made = n.op("Reshape", [made, "heads"], f"l{layer}/{name}/split")
            parts[name] = n.op("Transpose", [made], f"l{layer}/{name}/heads", perm=[0, 2, 1, 3])
        key = n.op("Concat", [f"past_key_values.{layer}.key", parts["k"]], f"present.{layer}.key", axis=2)
        value = n.op(
            "Concat", [f"past_key_values.{layer}.value", parts["v"]], f"present.{layer}.value", axis=2
        )
        turned = n.op("Transpose", [key], f"l{layer}/turned", perm=[0, 1, 3, 2])
        scores = n.op(
            "Mul", [n.op("MatMul", [parts["q"], turned], f"l{layer}/raw"), "scale"], f"l{layer}/scores"
        )
        seen = n.op("Where", [unseen, "lowest", scores], f"l{layer}/seen")
        mixed = n.op("MatMul", [n.op("Softmax", [seen], f"l{layer}/soft", axis=-1), value], f"l{layer}/mixed")
        mixed = n.op("Transpose", [mixed], f"l{layer}/back", perm=[0, 2, 1, 3])
        mixed = n.op("Reshape", [mixed, "joined"], f"l{layer}/joined")
        x = n.op("Add", [x, n.op("MatMul", [mixed, f"l{layer}.o"], f"l{layer}/o")], f"l{layer}/residual1")
        h = n.op("LayerNormalization", [x, f"l{layer}.norm2", "bias"], f"l{layer}/norm2", axis=-1)
        x = n.op("Add", [x, _mlp(n, h, layer)], f"l{layer}/residual2")
    _head(n, x, tied=tied)
    inputs = [
        tensor("input_ids", ["batch", "new"], TensorProto.INT64),
        tensor("attention_mask", ["batch", "total"], TensorProto.INT64),
        tensor("position_ids", ["batch", "new"], TensorProto.INT64),
        *_cache(past=True),
    ]
    outputs = [tensor("logits", ["batch", "new", VOCABULARY]), *_cache(past=False)]
    return model(n.nodes, inputs, outputs, n.arrays, opset=opset)


def genai_decoder(*, tied: bool = False, opset: int = 21) -> onnx.ModelProto:
    """GroupQueryAttention and norms of the runtime's own, as onnxruntime-genai's builder writes them."""
    n = _Nodes()
    n.arrays = dict(weights(tied=tied))
    angles = np.outer(np.arange(512), 100.0 ** -(np.arange(SIZE // 2) / (SIZE // 2)))
    n.constant("cos", np.cos(angles).astype(np.float32))
    n.constant("sin", np.sin(angles).astype(np.float32))
    n.constant("one", np.array([1]))
    sums = n.op("ReduceSum", ["attention_mask", "one"], "mask/sum", keepdims=1)
    lengths = n.op("Cast", [n.op("Sub", [sums, "one"], "mask/last")], "lengths", to=TensorProto.INT32)
    total = n.op(
        "Gather",
        [n.op("Shape", ["attention_mask"], "mask/shape"), n.constant("at", np.int64(1))],
        "mask/total",
    )
    total = n.op("Cast", [total], "total", to=TensorProto.INT32)
    x = n.op("Gather", ["embed", "input_ids"], "embedded")
    for layer in range(LAYERS):
        norm = {"epsilon": 1e-5, "axis": -1, "stash_type": 1}
        h = n.op("SimplifiedLayerNormalization", [x, f"l{layer}.norm1"], f"l{layer}/norm1", **norm)
        parts = [n.op("MatMul", [h, f"l{layer}.{name}"], f"l{layer}/{name}") for name in "qkv"]
        past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        outputs = [f"l{layer}/attention", *(f"present.{layer}.{part}" for part in ("key", "value"))]
        n.nodes.append(
            node(
                "GroupQueryAttention",
                [*parts, *past, lengths, total, "cos", "sin"],
                outputs,
                f"l{layer}/attention",
                domain=CONTRIB,
                num_heads=HEADS,
                kv_num_heads=HEADS,
                do_rotary=1,
            )
        )
        x = n.op(
            "Add", [x, n.op("MatMul", [outputs[0], f"l{layer}.o"], f"l{layer}/o")], f"l{layer}/residual1"
        )
        h = n.op("SimplifiedLayerNormalization", [x, f"l{layer}.norm2"], f"l{layer}/norm2", **norm)
        x = n.op("Add", [x, _mlp(n, h, layer)], f"l{layer}/residual2")
    _head(n, x, tied=tied)
    inputs = [
        tensor("input_ids", ["batch", "new"], TensorProto.INT64),
        tensor("attention_mask", ["batch", "total"], TensorProto.INT64),
        *_cache(past=True),
    ]
    outputs = [tensor("logits", ["batch", "new", VOCABULARY]), *_cache(past=False)]
    return model(n.nodes, inputs, outputs, n.arrays, opset=opset, ir_version=10, domains={CONTRIB: 1})


def merged_decoder() -> onnx.ModelProto:
    """The primitive decoder twice in an If: with and without a cache, with weights that both read."""
    whole = primitive_decoder()
    graph = whole.graph
    outer = {value.name for value in (*graph.input, *graph.initializer)}

    def branch(name: str) -> onnx.GraphProto:
        nodes = [onnx.NodeProto.FromString(one.SerializeToString()) for one in graph.node]
        for one in nodes:
            one.name = f"{name}/{one.name}"
            one.input[:] = [own if not own or own in outer else f"{name}/{own}" for own in one.input]
            one.output[:] = [f"{name}/{own}" for own in one.output]
        outputs = [onnx.ValueInfoProto.FromString(one.SerializeToString()) for one in graph.output]
        for value in outputs:
            value.name = f"{name}/{value.name}"
        return onnx.helper.make_graph(nodes, name, [], outputs)

    names = [value.name for value in graph.output]
    branches = {"then_branch": branch("then"), "else_branch": branch("else")}
    chosen = onnx.helper.make_node("If", ["use_cache_branch"], names, "if", **branches)
    flag = tensor("use_cache_branch", [1], TensorProto.BOOL)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    return model([chosen], [*graph.input, flag], list(graph.output), arrays, opset=17)


SHAPES = {"primitives": primitive_decoder, "genai": genai_decoder}


def ids(count: int = 24, seed: int = 0) -> np.ndarray:
    """Token ids (1, count)."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (1, count))
