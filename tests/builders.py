"""Small models built in code, for tests of every part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Info = onnx.ValueInfoProto


def tensor(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> Info:
    """An input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node; ``domain`` may be among the attributes."""
    return helper.make_node(op, list(inputs), list(outputs), name=name or None, **attributes)


def constants(arrays: Mapping[str, Any]) -> list[onnx.TensorProto]:
    """Initializers from arrays."""
    return [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    initializers: Mapping[str, Any] | None = None,
    name: str = "graph",
) -> onnx.GraphProto:
    """A graph, for example a branch of an If."""
    return helper.make_graph(list(nodes), name, list(inputs), list(outputs), constants(initializers or {}))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    initializers: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model."""
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, version) for domain, version in (domains or {}).items()]
    return helper.make_model(
        graph(nodes, inputs, outputs, initializers),
        opset_imports=imports,
        ir_version=ir_version,
        functions=list(functions),
    )


def chain(length: int, width: int = 4) -> onnx.ModelProto:
    """``length`` nodes in a row: Add of an own constant and Relu by turns."""
    nodes, arrays, last = [], {}, "x"
    for index in range(length):
        if index % 2:
            nodes.append(node("Relu", [last], [f"t{index}"], f"n{index}"))
        else:
            arrays[f"c{index}"] = np.full(width, 1e-3, np.float32)
            nodes.append(node("Add", [last, f"c{index}"], [f"t{index}"], f"n{index}"))
        last = f"t{index}"
    return model(nodes, [tensor("x", ["batch", width])], [tensor(last, ["batch", width])], arrays)


def conv_net(seed: int = 0, dtype: Any = np.float32, opset: int = 17) -> onnx.ModelProto:
    """Conv, batch normalization, Relu, pooling, Gemm: a small classifier of 8 × 8 images."""
    rng = np.random.default_rng(seed)
    arrays = {
        "w": rng.standard_normal((6, 3, 3, 3)).astype(dtype),
        "b": rng.standard_normal(6).astype(dtype),
        "gamma": rng.uniform(0.5, 2, 6).astype(dtype),
        "beta": rng.standard_normal(6).astype(dtype),
        "mean": rng.standard_normal(6).astype(dtype),
        "var": rng.uniform(0.5, 2, 6).astype(dtype),
        "fc": rng.standard_normal((6, 5)).astype(dtype),
        "fb": rng.standard_normal(5).astype(dtype),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["conv"], "Conv_0", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["conv", "gamma", "beta", "mean", "var"], ["bn"], "BN_0"),
        node("Relu", ["bn"], ["relu"], "Relu_0"),
        node("GlobalAveragePool", ["relu"], ["pool"], "Pool_0"),
        node("Flatten", ["pool"], ["flat"], "Flatten_0"),
        node("Gemm", ["flat", "fc", "fb"], ["y"], "Gemm_0"),
    ]
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        nodes,
        [tensor("x", ["batch", 3, 8, 8], element)],
        [tensor("y", ["batch", 5], element)],
        arrays,
        opset=opset,
    )


def two_branches() -> onnx.ModelProto:
    """An If whose branches use the same names, read an outer tensor, and hold constants of their own."""

    def branch(op: str) -> onnx.GraphProto:
        nodes = [
            node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32([2.0]), "k")),
            node(op, ["h", "k"], ["t"], "op"),
            node("Add", ["t", "c"], ["out"], "last"),
        ]
        return graph(nodes, [], [tensor("out", None)], {"c": np.float32([1.0])}, name=op)

    nodes = [
        node("Relu", ["x"], ["h"], "op"),
        node("If", ["cond"], ["y"], "If_0", then_branch=branch("Mul"), else_branch=branch("Sub")),
    ]
    return model(
        nodes,
        [tensor("x", [3]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", [3])],
    )
