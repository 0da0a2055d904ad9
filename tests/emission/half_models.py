"""Models with what conversion to float16 is known to break, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from builders import graph, model, node, tensor
from onnx import TensorProto, helper

from emission.models import Array, normal

INT64, BOOL, DOUBLE, HALF = TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE, TensorProto.FLOAT16
FEEDS = 6
MIN32 = np.finfo(np.float32).min
Nodes = list[onnx.NodeProto]


@dataclass(frozen=True)
class Case:
    """A model, inputs, and how it may be judged."""

    proto: onnx.ModelProto
    feeds: list[dict[str, Array]]
    needs_data: bool = False  # only ranges of values tell that float16 is not enough


def _case(nodes: Nodes, arrays: Mapping[str, Any], *shape: int, data: bool = False, **more: Any) -> Case:
    """Nodes from x to y."""
    proto = model(nodes, [tensor("x", shape)], [tensor("y", None)], arrays, **more)
    return Case(proto, [{"x": normal(*shape, seed=i)} for i in range(FEEDS)], data)


def _weight(rows: int = 64, columns: int = 64) -> Array:
    return normal(rows, columns) / np.float32(np.sqrt(rows))


def functions() -> Case:
    """A function of the model that calls another one, with an attribute handed down."""
    here = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    leak = node("LeakyRelu", ["a"], ["b"])
    leak.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    inner = helper.make_function("my", "Act", ["a"], ["b"], [leak], here[:1], ["alpha"])
    block = [node("MatMul", ["a", "w"], ["t"]), node("Act", ["t"], ["b"], domain="my", alpha=0.3)]
    outer = helper.make_function("my", "Block", ["a", "w"], ["b"], block, here)
    nodes = [
        node("Block", ["x", "w1"], ["h"], "one", domain="my"),
        node("Block", ["h", "w2"], ["y"], "two", domain="my"),
    ]
    arrays = {"w1": _weight(), "w2": _weight()}
    return _case(nodes, arrays, 2, 64, domains={"my": 1}, functions=[outer, inner])


def sequences() -> Case:
    """Tensors go into a sequence and out of it."""
    nodes = [
        node("SplitToSequence", ["x", "one"], ["s"], "split", axis=0, keepdims=1),
        node("SequenceAt", ["s", "first"], ["a"], "at"),
        node("MatMul", ["a", "w"], ["m"], "layer"),
        node("SequenceInsert", ["s", "m"], ["longer"], "insert"),
        node("ConcatFromSequence", ["longer"], ["y"], "join", axis=0),
    ]
    return _case(nodes, {"one": np.int64(1), "first": np.int64(0), "w": _weight()}, 3, 64)


def sequence_in_loop() -> Case:
    """A loop that carries a sequence."""
    body = graph(
        [node("SequenceInsert", ["s", "v"], ["longer"], "insert"), node("Identity", ["go"], ["on"], "on")],
        [
            tensor("i", (), INT64),
            tensor("go", (), BOOL),
            helper.make_tensor_sequence_value_info("s", 1, None),
        ],
        [tensor("on", (), BOOL), helper.make_tensor_sequence_value_info("longer", 1, None)],
    )
    nodes = [
        node("MatMul", ["x", "w"], ["v"], "layer"),
        node("SequenceEmpty", [], ["none"], "empty", dtype=1),
        node("Loop", ["n", "yes", "none"], ["all"], "loop", body=body),
        node("ConcatFromSequence", ["all"], ["y"], "join", axis=0),
    ]
    return _case(nodes, {"n": np.int64(2), "yes": np.array(True), "w": _weight()}, 3, 64)


def optional_value() -> Case:
    """A value of an optional type."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "layer"),
        node("Optional", ["m"], ["o"], "wrap"),
        node("OptionalGetElement", ["o"], ["g"], "unwrap"),
        node("Relu", ["g"], ["y"], "relu"),
    ]
    return _case(nodes, {"w": _weight()}, 3, 64, opset=18)


def left_out_inputs() -> Case:
    """Inputs in the middle that are left out: Clip, Resize."""
    nodes = [
        node("Clip", ["x", "", "six"], ["c"], "clip"),
        node("Resize", ["c", "", "", "sizes"], ["y"], "resize", mode="linear"),
    ]
    return _case(nodes, {"six": np.float32(1.5), "sizes": np.int64([1, 3, 16, 16])}, 1, 3, 8, 8)


def recurrent() -> Case:
    """An LSTM with a first state and without lengths."""
    nodes = [node("LSTM", ["x", "w", "r", "b", "", "h"], ["y"], "lstm", hidden_size=32)]
    arrays = {"w": 0.3 * normal(1, 128, 16), "r": 0.3 * normal(1, 128, 32), "b": 0.1 * normal(1, 256)}
    return _case(nodes, {**arrays, "h": normal(1, 2, 32)}, 5, 2, 16)


def quantized_part() -> Case:
    """Layers that are quantized already."""
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        node("MatMul", ["d", "w"], ["m"], "float"),
        node("DequantizeLinear", ["wq", "ws", "wz"], ["wd"], "wd", axis=1),
        node("MatMul", ["m", "wd"], ["y"], "layer"),
    ]
    arrays = {
        "s": np.float32(0.03), "z": np.uint8(128), "w": _weight(), "ws": np.full(32, 0.01, np.float32),
        "wq": np.arange(-127, 127, dtype=np.int8).repeat(9)[:2048].reshape(64, 32),
        "wz": np.zeros(32, np.int8),
    }  # fmt: skip
    return _case(nodes, arrays, 2, 64, opset=19)


def integer_sums() -> Case:
    """Sums of 8-bit products, which leave the range before they are scaled."""
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "q"),
        node("MatMulInteger", ["q", "wq", "z"], ["sums"], "integer"),
        node("Cast", ["sums"], ["f"], "float", to=1),
        node("Mul", ["s", "ws"], ["scale"], "scale"),
        node("Mul", ["f", "scale"], ["m"], "scaled"),
        node("MatMul", ["m", "w"], ["y"], "layer"),
    ]
    arrays = {"wq": np.full((64, 32), 127, np.int8), "ws": np.float32(0.01), "w": _weight(32, 32)}
    return _case(nodes, arrays, 2, 64)


def batch_norm_in_training() -> Case:
    """Batch normalization that computes its own statistics."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n", "rm", "rv"], "bn", training_mode=1),
        node("Relu", ["n"], ["y"], "relu"),
    ]
    arrays = {"w": normal(16, 3, 3, 3), **{name: np.abs(normal(16)) for name in "gbmv"}}
    return _case(nodes, arrays, 4, 3, 8, 8)


def double_part() -> Case:
    """Numbers beyond the range in float64."""
    nodes = [
        node("Cast", ["x"], ["d"], "wide", to=DOUBLE),
        node("Mul", ["d", "big"], ["m"], "mul"),
        node("Cast", ["m"], ["f"], "narrow", to=TensorProto.FLOAT),
        node("Mul", ["f", "small"], ["h"], "scaled"),
        node("MatMul", ["h", "w"], ["y"], "layer"),
    ]
    return _case(nodes, {"big": np.float64(1e6), "small": np.float32(1e-6), "w": _weight()}, 2, 64)


def half_part() -> Case:
    """A layer that is float16 already."""
    nodes = [
        node("Cast", ["x"], ["h"], "down", to=HALF),
        node("MatMul", ["h", "w"], ["m"], "half"),
        node("Cast", ["m"], ["f"], "up", to=TensorProto.FLOAT),
        node("MatMul", ["f", "v"], ["y"], "layer"),
    ]
    return _case(nodes, {"w": _weight().astype(np.float16), "v": _weight()}, 2, 64)


def small_values() -> Case:
    """Values where float16 has few bits."""
    nodes = [
        node("Mul", ["x", "down"], ["a"], "down1"), node("Mul", ["a", "down"], ["b"], "down2"),
        node("Mul", ["b", "up"], ["c"], "up1"), node("Mul", ["c", "up"], ["y"], "up2"),
    ]  # fmt: skip
    return _case(nodes, {"down": np.float32(1e-3), "up": np.float32(1e3)}, 2, 64, data=True)


def small_difference() -> Case:
    """A large mean that is taken off."""
    nodes = [
        node("Add", ["x", "k"], ["a"], "plus"),
        node("ReduceMean", ["a"], ["m"], "mean", axes=[-1], keepdims=1),
        node("Sub", ["a", "m"], ["d"], "minus"),
        node("MatMul", ["d", "w"], ["y"], "layer"),
    ]
    return _case(nodes, {"k": np.float32(1000), "w": _weight()}, 2, 64, data=True)


def _positions(nodes: Nodes, arrays: Mapping[str, Any], shape: tuple[int, ...]) -> Case:
    inputs = [tensor("x", (1, 64, 32)), tensor("i", shape, INT64)]
    proto = model(nodes, inputs, [tensor("y", None)], arrays)
    places = np.arange(3900, 3964).reshape(shape)
    return Case(proto, [{"x": normal(1, 64, 32, seed=i), "i": places} for i in range(FEEDS)])


def rotary_positions() -> Case:
    """Angles of rotary embeddings, computed from positions."""
    nodes = [
        node("Cast", ["i"], ["f"], "float", to=1), node("MatMul", ["f", "k"], ["a"], "angles"),
        node("Cos", ["a"], ["c"], "cos"), node("Mul", ["x", "c"], ["y"], "turn"),
    ]  # fmt: skip
    frequencies = (1e4 ** (-np.arange(32) / 32)).astype(np.float32)[None]
    return _positions(nodes, {"k": frequencies}, (1, 64, 1))


def times() -> Case:
    """The sine of a time that comes as a float."""
    nodes = [
        node("Mul", ["t", "k"], ["a"], "angles"), node("Sin", ["a"], ["s"], "sin"),
        node("Add", ["x", "s"], ["y"], "add"),
    ]  # fmt: skip
    inputs = [tensor("x", (2, 32)), tensor("t", (2, 1))]
    frequencies = (1e4 ** (-np.arange(32) / 32)).astype(np.float32)
    proto = model(nodes, inputs, [tensor("y", None)], {"k": frequencies})
    feeds = [{"x": normal(2, 32, seed=i), "t": np.float32([[990 + i], [321 + i]])} for i in range(FEEDS)]
    return Case(proto, feeds)


def computed_mask() -> Case:
    """A mask that is made of truth values and the lowest float."""
    nodes = [
        node("Cast", ["m"], ["f"], "float", to=1),
        node("Sub", ["one", "f"], ["i"], "invert"),
        node("Mul", ["i", "low"], ["a"], "mask"),
        node("Add", ["x", "a"], ["s"], "add"),
        node("Softmax", ["s"], ["y"], "soft", axis=-1),
    ]
    inputs = [tensor("x", (4, 4)), tensor("m", (1, 4), INT64)]
    proto = model(nodes, inputs, [tensor("y", None)], {"one": np.float32(1), "low": np.float32(MIN32)})
    return Case(proto, [{"x": normal(4, 4, seed=i), "m": np.int64([[1, 1, 1, i % 2]])} for i in range(FEEDS)])


def nested_branches() -> Case:
    """An If in an If, with values of both outer scopes."""
    inner = [
        graph([node("MatMul", ["t", "w"], ["p"], "in")], [], [tensor("p", None)]),
        graph([node("Neg", ["t"], ["q"], "neg")], [], [tensor("q", None)]),
    ]
    then = graph(
        [
            node("Mul", ["h", "k"], ["t"], "mul"),
            node("If", ["c2"], ["o"], "if2", then_branch=inner[0], else_branch=inner[1]),
        ],
        [],
        [tensor("o", None)],
        {"k": np.float32(2)},
    )
    other = graph([node("Identity", ["h"], ["e"], "same")], [], [tensor("e", None)])
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "layer"), node("ReduceMax", ["x"], ["a"], "max", keepdims=0),
        node("ReduceMin", ["x"], ["b"], "min", keepdims=0), node("Greater", ["a", "z"], ["c"], "test"),
        node("Greater", ["b", "low"], ["c2"], "test2"),
        node("If", ["c"], ["y"], "if", then_branch=then, else_branch=other),
    ]  # fmt: skip
    return _case(nodes, {"w": _weight(), "z": np.float32(0), "low": np.float32(-2.4)}, 2, 64)


def scan() -> Case:
    """A Scan with a state and an output for each step."""
    body = graph(
        [
            node("Add", ["s", "e"], ["t"], "add"), node("Tanh", ["t"], ["s2"], "tanh"),
            node("Mul", ["s2", "k"], ["o"], "mul"),
        ],
        [tensor("s", (64,)), tensor("e", (64,))],
        [tensor("s2", (64,)), tensor("o", (64,))],
        {"k": normal(64)},
    )  # fmt: skip
    nodes = [node("Scan", ["z", "x"], ["last", "y"], "scan", body=body, num_scan_inputs=1)]
    return _case(nodes, {"z": np.zeros(64, np.float32)}, 5, 64)


def new_operators() -> Case:
    """Operators of the latest opsets."""
    nodes = [
        node("Attention", ["x", "x", "x"], ["a"], "attention"),
        node("RMSNormalization", ["a", "g"], ["y"], "norm"),
    ]
    return _case(nodes, {"g": normal(16)}, 1, 2, 8, 16, opset=23, ir_version=11)


CASES: Sequence[Callable[[], Case]] = (
    functions, sequences, sequence_in_loop, optional_value, left_out_inputs, recurrent, quantized_part,
    integer_sums, batch_norm_in_training, double_part, half_part, small_values, small_difference,
    rotary_positions, times, computed_mask, nested_branches, scan, new_operators,
)  # fmt: skip


def runtime_operators() -> Case:
    """Operators of the runtime's own domain, of which one is not known to take float16."""
    nodes = [
        node("FastGelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
        node("Inverse", ["g"], ["i"], "inverse", domain="com.microsoft"),
        node("FusedMatMul", ["i", "w"], ["y"], "layer", domain="com.microsoft", alpha=0.5),
    ]
    return _case(nodes, {"w": _weight(8)}, 8, 8, domains={"com.microsoft": 1})


def of_opset(opset: int) -> Case:
    """A small network as it was written at an opset."""
    late = opset >= 11
    arrays: dict[str, Any] = {
        "w": normal(8, 3, 3, 3), "fw": normal(10, 8), "fb": normal(10),
        **{name: np.abs(normal(8)) + 0.1 for name in ("b", "g", "bb", "m", "v")},
    }  # fmt: skip
    pads, scales = [0, 0, 1, 1, 0, 0, 1, 1], [1.0, 1.0, 2.0, 2.0]
    if late:
        arrays |= {"pads": np.int64(pads), "lo": np.float32(0), "hi": np.float32(6), "roi": np.zeros(0, "f4")}
    if opset >= 9:
        arrays["scales"] = np.float32(scales)
    if opset >= 18:
        arrays["axes"] = np.int64([1])
    if opset < 9:
        larger = node("Upsample", ["cl"], ["up"], "up", mode="nearest", scales=scales)
    elif opset == 9:
        larger = node("Upsample", ["cl", "scales"], ["up"], "up", mode="nearest")
    else:
        larger = node("Resize", ["cl", *(["roi"] if late else []), "scales"], ["up"], "up")
    pad = node("Pad", ["r", "pads"], ["p"], "pad") if late else node("Pad", ["r"], ["p"], "pad", pads=pads)
    clip = (
        node("Clip", ["mp", "lo", "hi"], ["cl"], "clip")
        if late
        else node("Clip", ["mp"], ["cl"], "clip", min=0.0, max=6.0)
    )
    mean = (
        node("ReduceMean", ["sm", "axes"], ["mean"], "mean", keepdims=1)
        if opset >= 18
        else node("ReduceMean", ["sm"], ["mean"], "mean", axes=[1], keepdims=1)
    )
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "g", "bb", "m", "v"], ["n"], "bn"),
        node("Relu", ["n"], ["r"], "relu"), pad,
        node("MaxPool", ["p"], ["mp"], "pool", kernel_shape=[2, 2], strides=[2, 2]), clip, larger,
        node("GlobalAveragePool", ["up"], ["ga"], "average"), node("Flatten", ["ga"], ["fl"], "flat"),
        node("Gemm", ["fl", "fw", "fb"], ["ge"], "gemm", transB=1),
        node("Softmax", ["ge"], ["sm"], "soft", axis=1), mean, node("Sub", ["sm", "mean"], ["y"], "minus"),
    ]  # fmt: skip
    return _case(
        nodes, arrays, 1, 3, 8, 8, opset=opset, ir_version=3 if opset < 9 else 8 if opset < 21 else 10
    )
