"""Models with subgraphs, and what their tensors are when computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from builders import graph, model, node, tensor
from onnx import TensorProto

from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.runtime.session import Session

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64


def normal(proto: onnx.ModelProto) -> ir.Model:
    loaded = io.load(proto)
    normalize(loaded)
    return loaded


def fetch(proto_or_model: Any, names: list[str], feeds: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of main-graph tensors, by a session without any optimization."""
    session = Session.open(proto_or_model, outputs=names, optimize=False)
    runs = [session.run(feed) for feed in feeds]
    return {name: [run[name] for run in runs] for name in names}


def transformer_block(seed: int = 0, width: int = 16, heads: int = 2) -> onnx.ModelProto:
    """Attention and a two-layer perceptron with a mask of minus infinity, open batch and length."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        name: (rng.standard_normal(shape) / 4).astype(np.float32)
        for name, shape in {
            "wq": (width, width),
            "wk": (width, width),
            "wv": (width, width),
            "wo": (width, width),
            "w1": (width, 4 * width),
            "w2": (4 * width, width),
        }.items()
    }
    arrays |= {
        "split": np.array([0, 0, heads, width // heads], np.int64),
        "join": np.array([0, 0, width], np.int64),
        "minus": np.float32(-np.inf),
        "zero": np.float32(0),
        "gamma": np.ones(width, np.float32),
        "root": np.float32(np.sqrt(width // heads)),
    }
    nodes = []
    for part in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{part}"], [part]),
            node("Reshape", [part, "split"], [f"{part}_split"]),
            node(
                "Transpose",
                [f"{part}_split"],
                [f"{part}_heads"],
                perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3],
            ),
        ]
    nodes += [
        node("MatMul", ["q_heads", "k_heads"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Where", ["keep", "zero", "minus"], ["mask"]),
        node("Add", ["scaled", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["probs"], axis=-1),
        node("MatMul", ["probs", "v_heads"], ["context"]),
        node("Transpose", ["context"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "join"], ["joined"]),
        node("MatMul", ["joined", "wo"], ["attended"]),
        node("Add", ["attended", "x"], ["residual"]),
        node("LayerNormalization", ["residual", "gamma"], ["normed"], axis=-1),
        node("MatMul", ["normed", "w1"], ["up"]),
        node("Relu", ["up"], ["act"]),
        node("MatMul", ["act", "w2"], ["y"]),
    ]
    return model(
        nodes,
        [tensor("x", ["batch", "length", width]), tensor("keep", ["batch", 1, 1, "length"], BOOL)],
        [tensor("y", ["batch", "length", width])],
        arrays,
    )


def loop(*, grows: bool = False, branch: bool = False) -> onnx.ModelProto:
    """``state = relu(state * 1.5 - 1)`` for ``n`` turns; ``scaled`` is inside, at times of growing shape."""
    nodes = [node("Mul", ["state", "k"], ["scaled"]), node("Sub", ["scaled", "one"], ["less"])]
    if branch:
        then = graph([node("Neg", ["less"], ["turned"])], [], [tensor("turned", None)])
        other = graph([node("Relu", ["less"], ["cut"])], [], [tensor("cut", None)])
        nodes += [
            node("Mod", ["i", "two"], ["rest"]),
            node("Cast", ["rest"], ["odd"], to=BOOL),
            node("If", ["odd"], ["next"], then_branch=then, else_branch=other),
        ]
    elif grows:
        nodes.append(node("Concat", ["less", "one_row"], ["next"], axis=0))
    else:
        nodes.append(node("Relu", ["less"], ["next"]))
    nodes += [node("Identity", ["go"], ["go_on"]), node("ReduceSum", ["next"], ["scan"], keepdims=0)]
    body = graph(
        nodes,
        [tensor("i", [], INT64), tensor("go", [], BOOL), tensor("state", [None])],
        [tensor("go_on", [], BOOL), tensor("next", [None]), tensor("scan", [])],
    )
    arrays = {
        "k": np.float32([1.5]),
        "one": np.float32([1]),
        "one_row": np.float32([9]),
        "two": np.int64(2),
        "yes": np.bool_(True),
    }
    return model(
        [node("Loop", ["n", "yes", "x"], ["y", "sums"], "loop", body=body)],
        [tensor("x", [None]), tensor("n", [], INT64)],
        [tensor("y", [None]), tensor("sums", [None])],
        arrays,
    )


def scan(*, branch: bool = False) -> onnx.ModelProto:
    """A running sum over the rows of ``x``; ``twice`` is inside."""
    nodes = [node("Add", ["total", "row"], ["next"]), node("Mul", ["next", "k"], ["twice"])]
    if branch:
        then = graph([node("Neg", ["twice"], ["turned"])], [], [tensor("turned", [3])])
        other = graph([node("Relu", ["twice"], ["cut"])], [], [tensor("cut", [3])])
        nodes += [
            node("ReduceSum", ["next"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["positive"]),
            node("If", ["positive"], ["out"], then_branch=then, else_branch=other),
        ]
    else:
        nodes.append(node("Relu", ["twice"], ["out"]))
    body = graph(nodes, [tensor("total", [3]), tensor("row", [3])], [tensor("next", [3]), tensor("out", [3])])
    return model(
        [
            node(
                "Scan",
                ["start", "x"],
                ["y", "rows"],
                "scan",
                body=body,
                num_scan_inputs=1,
                scan_output_directions=[0],
            )
        ],
        [tensor("start", [3]), tensor("x", [None, 3])],
        [tensor("y", [3]), tensor("rows", [None, 3])],
        {"k": np.float32([2]), "zero": np.float32(0)},
    )


def nested() -> onnx.ModelProto:
    """An If around a Loop around an If."""
    inner = loop(branch=True)
    body = graph(
        list(inner.graph.node),
        [],
        [tensor("y", [None])],
    )
    other = graph([node("Identity", ["x"], ["same"])], [], [tensor("same", [None])])
    proto = model(
        [node("If", ["run"], ["z"], "outer", then_branch=body, else_branch=other)],
        [tensor("x", [None]), tensor("n", [], INT64), tensor("run", [], BOOL)],
        [tensor("z", [None])],
    )
    proto.graph.initializer.extend(inner.graph.initializer)
    return proto
