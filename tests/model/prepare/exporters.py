"""Small graphs in the habits of the exporters: the same few layers, written as each of them writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from builders import graph, model, node, tensor
from onnx import TensorProto, helper

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Export:
    """A model, its layers, and the operators that preparation must leave none of."""

    proto: onnx.ModelProto
    layers: dict[
        str, int
    ]  # by operator: all have constant weights, and those not in ``in_float`` are quantized
    gone: tuple[str, ...] = ()
    shape: tuple[int, ...] = (4, 16)  # of the one input, "x"
    in_float: tuple[str, ...] = ()


HABITS: dict[str, Callable[[], Export]] = {}


def habit(build: Callable[[], Export]) -> Callable[[], Export]:
    HABITS[build.__name__] = build
    return build


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, *shape))
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.int64(values)


def export(
    nodes: list[onnx.NodeProto], arrays: Arrays, layers: dict[str, int], gone: tuple[str, ...] = (),
    shape: tuple[int, ...] = (4, 16), **more: Any,
) -> Export:  # fmt: skip
    proto = model(nodes, [tensor("x", ["n", *shape[1:]])], [tensor("y", None)], arrays, **more)
    return Export(proto, layers, gone, shape)


def gates(name: str, source: str, order: list[int]) -> list[onnx.NodeProto]:
    """A weight's gates taken apart by one Slice each and joined in ONNX's order, as torch's exporter does."""
    slices = [
        node("Slice", [source, f"at{g}", f"at{g + 1}", "zero1"], [f"{name}_g{g}"]) for g in sorted(order)
    ]
    joined = node("Concat", [f"{name}_g{g}" for g in order], [f"{name}_joined"], axis=0)
    return [*slices, joined, node("Unsqueeze", [f"{name}_joined", "zero1"], [name])]


def cuts(count: int, size: int) -> Arrays:
    return {"zero1": ints(0), **{f"at{g}": ints(g * size) for g in range(count + 1)}}


def recurrent(op: str, order: list[int], hidden: int, wide: int) -> Export:
    count = len(order)
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        *gates("W", "weight_ih", order),
        *gates("R", "weight_hh", order),
        node(op, ["t", "W", "R"], ["all", "last"], "rnn", hidden_size=hidden),
        node("Squeeze", ["last", "zero1"], ["h"]),
        node("Gemm", ["h", "fc"], ["y"], "fc_node", transB=1),
    ]
    arrays = {
        "weight_ih": weight(count * hidden, wide), "weight_hh": weight(count * hidden, hidden),
        "fc": weight(8, hidden), **cuts(count, hidden),
    }  # fmt: skip
    return export(nodes, arrays, {op: 1, "Gemm": 1}, ("Slice", "Concat", "Unsqueeze"), (1, 5, wide), opset=18)


# ---- torch's exporter built on torch.export


@habit
def torch_new_lstm_slices_large_gates() -> Export:
    return recurrent("LSTM", [0, 3, 1, 2], 256, 256)  # 1 MiB each: no Slice may keep its siblings


@habit
def torch_new_gru_slices_large_gates() -> Export:
    return replace(recurrent("GRU", [1, 0, 2], 320, 300), in_float=("GRU",))


@habit
def torch_new_lstm_slices_small_gates() -> Export:
    return replace(recurrent("LSTM", [0, 3, 1, 2], 16, 16), in_float=("LSTM",))


@habit
def torch_new_lstm_of_two_directions() -> Export:
    size, order = 128, [0, 3, 1, 2]
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0, 2])]
    for way in "fb":
        nodes += [*gates(f"W{way}", f"ih_{way}", order), *gates(f"R{way}", f"hh_{way}", order)]
    nodes += [
        node("Concat", ["Wf", "Wb"], ["W"], axis=0),
        node("Concat", ["Rf", "Rb"], ["R"], axis=0),
        node("LSTM", ["t", "W", "R"], ["y"], "rnn", hidden_size=size, direction="bidirectional"),
    ]
    arrays = {f"{kind}_{way}": weight(512, 128, seed=i) for i, (kind, way) in enumerate(
        [("ih", "f"), ("ih", "b"), ("hh", "f"), ("hh", "b")])}  # fmt: skip
    return export(
        nodes, {**arrays, **cuts(4, size)}, {"LSTM": 1}, ("Slice", "Concat"), (1, 5, size), opset=18
    )


@habit
def torch_new_linear_in_a_function() -> Export:
    linear = helper.make_function(
        "pkg.torch", "Linear", ["a", "w", "b"], ["c"],
        [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["a", "t"], ["m"]),
         node("Add", ["m", "b"], ["c"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    nodes = [
        node("Linear", ["x", "w1", "b"], ["h"], "one", domain="pkg.torch"),
        node("Relu", ["h"], ["r"]),
        node("Linear", ["r", "w2", "b"], ["y"], "two", domain="pkg.torch"),
    ]
    arrays = {"w1": weight(16, 16), "w2": weight(16, 16, seed=1), "b": np.zeros(16, np.float32)}
    return export(
        nodes,
        arrays,
        {"MatMul": 2},
        ("Transpose", "Linear"),
        opset=18,
        functions=[linear],
        domains={"pkg.torch": 1},
    )


@habit
def torch_new_gelu_of_erf() -> Export:
    nodes = [
        node("MatMul", ["x", "w1"], ["h"]),
        node("Div", ["h", "root2"], ["d"]),
        node("Erf", ["d"], ["e"]),
        node("Add", ["e", "one"], ["p"]),
        node("Mul", ["h", "p"], ["q"]),
        node("Mul", ["q", "half"], ["g"]),
        node("MatMul", ["g", "w2"], ["y"]),
    ]
    arrays = {"w1": weight(16, 16), "w2": weight(16, 8), "root2": np.float32(np.sqrt(2)),
              "one": np.float32(1), "half": np.float32(0.5)}  # fmt: skip
    return export(nodes, arrays, {"MatMul": 2}, opset=20)


@habit
def torch_new_attention_scales_by_a_constant_root() -> Export:
    nodes = [
        node("MatMul", ["x", "wq"], ["q"]),
        node("MatMul", ["x", "wk"], ["k"]),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("Constant", [], ["size"], value_float=16.0),
        node("Sqrt", ["size"], ["root"]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Div", ["s", "root"], ["d"]),
        node("Softmax", ["d"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["y"]),
    ]
    return export(
        nodes,
        {"wq": weight(16, 16), "wk": weight(16, 16, seed=1)},
        {"MatMul": 2},
        ("Sqrt",),
        (2, 6, 16),
        opset=18,
    )


# ---- torch's exporter that records TorchScript


@habit
def torch_old_lstm_makes_its_state_from_the_batch() -> Export:
    hidden = 128
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Shape", ["t"], ["shape"]),
        node("Gather", ["shape", "one"], ["batch"], axis=0),
        node("Unsqueeze", ["batch", "zero1"], ["batch1"]),
        node("Concat", ["one1", "batch1", "hidden1"], ["dims"], axis=0),
        node("Expand", ["state", "dims"], ["h0"]),
        node("LSTM", ["t", "W", "R", "B", "", "h0", "h0"], ["all", "last"], "rnn", hidden_size=hidden),
        node("Squeeze", ["all", "one1"], ["s"]),
        node("MatMul", ["s", "fc"], ["y"]),
    ]
    arrays = {"W": weight(1, 512, 128) / 8, "R": weight(1, 512, 128, seed=1) / 8,
              "B": np.zeros((1, 1024), np.float32), "fc": weight(128, 8), "one": np.int64(1),
              "zero1": ints(0), "one1": ints(1), "hidden1": ints(hidden),
              "state": np.zeros((1, 1, 1), np.float32)}  # fmt: skip
    return export(nodes, arrays, {"LSTM": 1, "MatMul": 1}, shape=(2, 5, 128))


@habit
def torch_old_keeps_weights_in_constant_nodes() -> Export:
    held = helper.make_tensor("w", TensorProto.FLOAT, [16, 8], weight(16, 8).tobytes(), raw=True)
    nodes = [node("Constant", [], ["w"], value=held), node("MatMul", ["x", "w"], ["y"])]
    return export(nodes, {}, {"MatMul": 1}, ("Constant",))


@habit
def torch_old_keeps_weights_as_inputs() -> Export:
    built = export([node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
                   {"w": weight(8, 16), "b": np.ones(8, np.float32)}, {"Gemm": 1})  # fmt: skip
    built.proto.graph.input.extend([tensor("w", [8, 16]), tensor("b", [8])])
    return built


def conv(name: str, source: str, result: str) -> onnx.NodeProto:
    return node("Conv", [source, name], [result], f"{name}_conv", pads=[1, 1, 1, 1])


@habit
def torch_old_conv_and_batch_norm() -> Export:
    nodes = [
        conv("w", "x", "c"),
        node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    arrays = {"w": weight(8, 3, 3, 3), "s": np.full(8, 2, np.float32), "b": np.ones(8, np.float32),
              "m": np.zeros(8, np.float32), "v": np.ones(8, np.float32)}  # fmt: skip
    return export(nodes, arrays, {"Conv": 1}, ("BatchNormalization",), (2, 3, 8, 8))


@habit
def torch_old_flattens_by_shape_arithmetic() -> Export:
    nodes = [
        conv("w", "x", "c"),
        node("Shape", ["c"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Unsqueeze", ["batch", "zero1"], ["batch1"]),
        node("Concat", ["batch1", "rest"], ["to"], axis=0),
        node("Reshape", ["c", "to"], ["f"]),
        node("Gemm", ["f", "fc"], ["y"], transB=1),
    ]
    arrays = {
        "w": weight(4, 3, 3, 3),
        "fc": weight(8, 256),
        "zero": np.int64(0),
        "zero1": ints(0),
        "rest": ints(-1),
    }
    return export(nodes, arrays, {"Conv": 1, "Gemm": 1}, shape=(2, 3, 8, 8))


@habit
def torch_old_asks_for_the_rank() -> Export:
    then = graph([node("Squeeze", ["x", "one1"], ["a"])], [], [tensor("a", None)], name="then")
    other = graph([node("Identity", ["x"], ["b"])], [], [tensor("b", None)], name="else")
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Size", ["shape"], ["rank"]),
        node("Equal", ["rank", "three"], ["is3"]),
        node("If", ["is3"], ["s"], then_branch=then, else_branch=other),
        node("MatMul", ["s", "w"], ["y"]),
    ]
    arrays = {"one1": ints(1), "three": np.int64(3), "w": weight(16, 8)}
    return export(nodes, arrays, {"MatMul": 1}, ("If", "Shape", "Size", "Identity"), (4, 1, 16))


@habit
def torch_old_leaves_dropout_and_casts() -> Export:
    nodes = [
        node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        node("MatMul", ["f", "w"], ["h"]),
        node("Dropout", ["h"], ["d"]),
        node("Relu", ["d"], ["r"]),
        node("MatMul", ["r", "v"], ["y"]),
    ]
    arrays = {"w": weight(16, 16), "v": weight(16, 8)}
    return export(nodes, arrays, {"MatMul": 2}, ("Cast", "Dropout"))


# ---- tf2onnx


def loop(body: onnx.GraphProto, carried: list[str], results: list[str]) -> list[onnx.NodeProto]:
    """A Loop of three steps."""
    return [node("Loop", ["steps", "go", *carried], results, "loop", body=body)]


def cell(
    states: list[str], step: list[onnx.NodeProto], results: list[str], name: str = "body"
) -> onnx.GraphProto:
    """A Loop's body: it counts nothing itself, and goes on as long as it is told."""
    return graph(
        [node("Identity", ["cond"], ["cond_out"]), *step],
        [
            tensor("i", [], TensorProto.INT64),
            tensor("cond", [], TensorProto.BOOL),
            *(tensor(s, None) for s in states),
        ],
        [tensor("cond_out", [], TensorProto.BOOL), *(tensor(r, None) for r in results)],
        name=name,
    )


LOOP: Arrays = {"steps": np.int64(3), "go": np.bool_(True)}
STEP = [
    node("MatMul", ["h", "k"], ["m"], "step"),
    node("Add", ["m", "c"], ["a"]),
    node("Tanh", ["a"], ["h_next"]),
]


@habit
def tf_loop_carries_its_weights() -> Export:
    body = cell(["h", "k", "c"], STEP, ["h_next", "k", "c"])
    nodes = loop(body, ["x", "kernel", "bias"], ["y", "kernel_out", "bias_out"])
    return export(nodes, {**LOOP, "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}, {"MatMul": 1})


@habit
def tf_loop_shares_its_weights_with_the_first_step() -> Export:
    body = cell(["h", "k", "c"], STEP, ["h_next", "k", "c"])
    nodes = [
        node("MatMul", ["x", "kernel"], ["first"], "first"),
        *loop(body, ["first", "kernel", "bias"], ["y", "kernel_out", "bias_out"]),
    ]
    return export(nodes, {**LOOP, "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}, {"MatMul": 2})


@habit
def tf_loop_in_a_loop_carries_the_same_weights() -> Export:
    inner = cell(["h", "k", "c"], STEP, ["h_next", "k", "c"], "inner")
    for value in (*inner.input, *inner.output):
        value.name = {"i": "j", "cond": "cond2", "cond_out": "cond2_out"}.get(value.name, value.name)
    inner.node[0].CopyFrom(node("Identity", ["cond2"], ["cond2_out"]))
    body = cell(
        ["g", "w", "d"],
        [node("Loop", ["steps", "go", "g", "w", "d"], ["g_next", "w_next", "d_next"], "inner", body=inner)],
        ["g_next", "w_next", "d_next"],
    )
    nodes = loop(body, ["x", "kernel", "bias"], ["y", "kernel_out", "bias_out"])
    return export(nodes, {**LOOP, "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}, {"MatMul": 1})


@habit
def tf_loop_prepares_its_weights_in_the_body() -> Export:
    step = [node("Transpose", ["k"], ["kt"], perm=[1, 0]), node("MatMul", ["h", "kt"], ["m"], "step"),
            node("Tanh", ["m"], ["h_next"])]  # fmt: skip
    nodes = loop(cell(["h", "k"], step, ["h_next", "k"]), ["x", "kernel"], ["y", "kernel_out"])
    return export(nodes, {**LOOP, "kernel": weight(16, 16)}, {"MatMul": 1}, ("Transpose",))


@habit
def tf_scan_carries_its_weights() -> Export:
    body = graph(
        [node("MatMul", ["row", "k"], ["m"], "in"), node("MatMul", ["h", "r"], ["n"], "rec"),
         node("Add", ["m", "n"], ["s"]), node("Tanh", ["s"], ["h_next"]),
         node("Identity", ["h_next"], ["each"]),
         node("Identity", ["k"], ["k_next"]), node("Identity", ["r"], ["r_next"])],
        [tensor(name, None) for name in ("h", "k", "r", "row")],
        [tensor(name, None) for name in ("h_next", "k_next", "r_next", "each")],
    )  # fmt: skip
    nodes = [node("Scan", ["h0", "kernel", "recurrent", "x"], ["last", "k_out", "r_out", "y"], "scan",
                  body=body, num_scan_inputs=1)]  # fmt: skip
    arrays = {
        "h0": np.zeros((3, 16), np.float32),
        "kernel": weight(16, 16),
        "recurrent": weight(16, 16, seed=1),
    }
    return export(nodes, arrays, {"MatMul": 2}, shape=(4, 3, 16))


@habit
def tf_convolution_of_nhwc() -> Export:
    nodes = [
        node("Transpose", ["x"], ["nchw"], perm=[0, 3, 1, 2]),
        node("Transpose", ["hwio"], ["oihw"], perm=[3, 2, 0, 1]),
        node("Conv", ["nchw", "oihw"], ["c"], pads=[1, 1, 1, 1]),
        node("Reshape", ["bias", "dims"], ["b"]),
        node("Add", ["c", "b"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Transpose", ["r"], ["y"], perm=[0, 2, 3, 1]),
    ]
    arrays = {"hwio": weight(3, 3, 3, 8), "bias": np.ones(8, np.float32), "dims": ints(1, 8, 1, 1)}
    return export(nodes, arrays, {"Conv": 1}, ("Reshape", "Add"), (2, 8, 8, 3))


@habit
def tf_batch_norm_as_product_and_sum() -> Export:
    nodes = [conv("w", "x", "c"), node("Mul", ["c", "s"], ["m"]), node("Add", ["m", "b"], ["y"])]
    arrays = {"w": weight(8, 3, 3, 3), "s": np.full((1, 8, 1, 1), 2, np.float32),
              "b": np.ones((1, 8, 1, 1), np.float32)}  # fmt: skip
    return export(nodes, arrays, {"Conv": 1}, ("Mul", "Add"), (2, 3, 8, 8))


@habit
def tf_dense_of_three_axes_by_tensordot() -> Export:
    nodes = [
        node("Reshape", ["x", "flat"], ["two"]),
        node("MatMul", ["two", "w"], ["m"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "first"], ["kept"]),
        node("Concat", ["kept", "width"], ["to"], axis=0),
        node("Reshape", ["m", "to"], ["y"]),
    ]
    arrays = {"flat": ints(-1, 16), "w": weight(16, 8), "first": ints(0, 1), "width": ints(8)}
    return export(nodes, arrays, {"MatMul": 1}, shape=(2, 5, 16))


# ---- Paddle


@habit
def paddle_loop_assigns_its_weights() -> Export:
    step = [*STEP, node("Identity", ["k"], ["k1"]), node("Identity", ["k1"], ["k2"]),
            node("Identity", ["c"], ["c1"])]  # fmt: skip
    body = cell(["h", "k", "c"], step, ["h_next", "k2", "c1"])
    nodes = loop(body, ["x", "kernel", "bias"], ["y", "kernel_out", "bias_out"])
    return export(nodes, {**LOOP, "kernel": weight(16, 16), "bias": np.ones(16, np.float32)}, {"MatMul": 1})


@habit
def paddle_branches_hand_on_the_weight() -> Export:
    branches = {
        f"{way}_branch": graph(
            [node("Identity", ["w"], [f"w_{way}"]), node(op, ["x"], [f"h_{way}"])],
            [], [tensor(f"h_{way}", None), tensor(f"w_{way}", None)], name=way,
        )
        for way, op in (("then", "Relu"), ("else", "Neg"))
    }  # fmt: skip
    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Greater", ["top", "limit"], ["high"]),
        node("If", ["high"], ["h", "wanted"], "choice", **branches),
        node("MatMul", ["h", "wanted"], ["y"]),
    ]
    return export(nodes, {"w": weight(16, 8), "limit": np.float32(1)}, {"MatMul": 1})


@habit
def paddle_hard_swish() -> Export:
    nodes = [
        conv("w", "x", "c"),
        node("Add", ["c", "three"], ["a"]),
        node("Clip", ["a", "zero", "six"], ["l"]),
        node("Mul", ["c", "l"], ["m"]),
        node("Div", ["m", "six"], ["d"]),
        conv("v", "d", "y"),
    ]
    arrays = {"w": weight(8, 3, 3, 3), "v": weight(8, 8, 3, 3), "three": np.float32(3), "zero": np.float32(0),
              "six": np.float32(6)}  # fmt: skip
    return export(nodes, arrays, {"Conv": 2}, ("Div",), (2, 3, 8, 8))


@habit
def paddle_writes_minus_one_for_open_sizes() -> Export:
    nodes = [
        node("Identity", ["w"], ["w1"]),
        node("MatMul", ["x", "w1"], ["m"]),
        node("Add", ["m", "b"], ["y"]),
    ]
    built = export(nodes, {"w": weight(16, 8), "b": np.ones(8, np.float32)}, {"MatMul": 1}, ("Identity",))
    built.proto.graph.value_info.append(tensor("m", [-1, 8]))
    return built


# ---- Keras 3


@habit
def keras_dense_reads_variables_through_identity() -> Export:
    nodes = [
        node("Identity", ["kernel"], ["read"], "dense/Cast/ReadVariableOp"),
        node("Cast", ["read"], ["cast"], "dense/Cast", to=TensorProto.FLOAT),
        node("MatMul", ["x", "cast"], ["m"], "dense/MatMul"),
        node("Add", ["m", "bias"], ["s"], "dense/Add"),
        node("Relu", ["s"], ["y"]),
    ]
    arrays = {"kernel": weight(16, 8), "bias": np.ones(8, np.float32)}
    return export(nodes, arrays, {"MatMul": 1}, ("Identity", "Cast"))


@habit
def keras_mixed_precision_in_float16() -> Export:
    nodes = [
        node("Cast", ["x"], ["half"], to=TensorProto.FLOAT16),
        node("MatMul", ["half", "kernel"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    return export(nodes, {"kernel": weight(16, 8).astype(np.float16)}, {"MatMul": 1})


# ---- JAX


@habit
def jax_dot_general_transposes_its_weight() -> Export:
    nodes = [
        node("Transpose", ["w"], ["wt"], perm=[1, 0]),
        node("Reshape", ["wt", "dims"], ["wr"]),
        node("MatMul", ["x", "wr"], ["m"]),
        node("Reshape", ["b", "wide"], ["b2"]),
        node("Expand", ["b2", "wide"], ["b3"]),
        node("Add", ["m", "b3"], ["y"]),
    ]
    arrays = {"w": weight(8, 16), "dims": ints(16, 8), "b": np.ones(8, np.float32), "wide": ints(1, 8)}
    return export(nodes, arrays, {"MatMul": 1}, ("Transpose", "Reshape", "Expand"))


@habit
def jax_scan_reads_weights_from_outside() -> Export:
    body = graph(
        [node("MatMul", ["h", "kernel"], ["m"], "rec"), node("Add", ["m", "row"], ["s"]),
         node("Tanh", ["s"], ["h_next"]), node("Identity", ["h_next"], ["each"])],
        [tensor("h", None), tensor("row", None)], [tensor("h_next", None), tensor("each", None)],
    )  # fmt: skip
    nodes = [node("Scan", ["h0", "x"], ["last", "y"], "scan", body=body, num_scan_inputs=1)]
    arrays = {"h0": np.zeros((3, 16), np.float32), "kernel": weight(16, 16)}
    return export(nodes, arrays, {"MatMul": 1}, shape=(4, 3, 16))


# ---- scikit-learn


@habit
def sklearn_network_behind_a_scaler() -> Export:
    nodes = [
        node("Sub", ["x", "mean"], ["d"]),
        node("Div", ["d", "scale"], ["n"]),
        node("MatMul", ["n", "coef0"], ["m"]),
        node("Add", ["m", "bias0"], ["a"]),
        node("Relu", ["a"], ["r"]),
        node("MatMul", ["r", "coef1"], ["y"]),
    ]
    arrays = {"mean": np.zeros((1, 16), np.float32), "scale": np.full((1, 16), 2, np.float32),
              "coef0": weight(16, 16), "bias0": np.ones((1, 16), np.float32),
              "coef1": weight(16, 4)}  # fmt: skip
    return export(nodes, arrays, {"MatMul": 2}, domains={"ai.onnx.ml": 3})


def sklearn_pipelines() -> dict[str, onnx.ModelProto]:
    """Pipelines without any layer."""
    tree = node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, nodes_treeids=[0],
                nodes_nodeids=[0], nodes_featureids=[0], nodes_modes=["LEAF"], nodes_values=[0.0],
                nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], target_nodeids=[0],
                target_ids=[0], target_weights=[1.0])  # fmt: skip
    linear = node(
        "LinearRegressor", ["x"], ["y"], domain="ai.onnx.ml", coefficients=[1.0] * 16, intercepts=[0.0]
    )
    scaler = node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0] * 16, scale=[1.0] * 16)
    return {
        name: model([one], [tensor("x", ["n", 16])], [tensor("y", None)], domains={"ai.onnx.ml": 3})
        for name, one in (("tree", tree), ("linear", linear), ("scaler", scaler))
    }
