"""Compositions recognised in every variant, and left alone where they only look alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import helper

from octavo.model.files import io
from octavo.model.graph import meta, query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import fusions, prepare, shapes

from .helpers import before_and_after, ops

Nodes = list[onnx.NodeProto]
Arrays = dict[str, Any]

ROOT = math.sqrt(2)


def erf(inner: Nodes, outer: Nodes) -> Nodes:
    return [*inner, node("Erf", ["s"], ["e"]), node("Add", ["e", "one"], ["p"]), *outer]


DIV = [node("Div", ["x", "root"], ["s"])]
MUL = [node("Mul", ["inverse", "x"], ["s"])]
GELU: dict[str, Nodes] = {
    "(x·½)·p": erf(DIV, [node("Mul", ["x", "half"], ["h"]), node("Mul", ["h", "p"], ["y"], "last")]),
    "(x·p)·½": erf(DIV, [node("Mul", ["x", "p"], ["h"]), node("Mul", ["h", "half"], ["y"], "last")]),
    "x·(p·½)": erf(MUL, [node("Mul", ["half", "p"], ["h"]), node("Mul", ["x", "h"], ["y"], "last")]),
    "(p·x)/2": erf(MUL, [node("Mul", ["p", "x"], ["h"]), node("Div", ["h", "two"], ["y"], "last")]),
    "p·(x/2)": erf(DIV, [node("Div", ["x", "two"], ["h"]), node("Mul", ["p", "h"], ["y"], "last")]),
}


def tanh(inner: Nodes) -> Nodes:
    return [
        *inner,
        node("Tanh", ["s"], ["e"]),
        node("Add", ["one", "e"], ["p"]),
        node("Mul", ["x", "half"], ["h"]),
        node("Mul", ["h", "p"], ["y"], "last"),
    ]


TANH: dict[str, Nodes] = {
    "Pow": tanh(
        [
            node("Pow", ["x", "three"], ["c"]),
            node("Mul", ["cube", "c"], ["d"]),
            node("Add", ["x", "d"], ["f"]),
            node("Mul", ["scale", "f"], ["s"]),
        ]
    ),
    "x·x·x": tanh(
        [
            node("Mul", ["x", "x"], ["q"]),
            node("Mul", ["q", "x"], ["c"]),
            node("Mul", ["c", "cube"], ["d"]),
            node("Add", ["d", "x"], ["f"]),
            node("Mul", ["f", "scale"], ["s"]),
        ]
    ),
    "x·scale·(1+c·x·x)": tanh(
        [
            node("Mul", ["x", "scale"], ["k"]),
            node("Mul", ["x", "cube"], ["c"]),
            node("Mul", ["c", "x"], ["d"]),
            node("Add", ["d", "one"], ["f"]),
            node("Mul", ["k", "f"], ["s"]),
        ]
    ),
    "scale·(x·(1+c·x²))": tanh(
        [
            node("Pow", ["x", "two"], ["q"]),
            node("Mul", ["q", "cube"], ["d"]),
            node("Add", ["one", "d"], ["f"]),
            node("Mul", ["x", "f"], ["g"]),
            node("Mul", ["g", "scale"], ["s"]),
        ]
    ),
}

SHIFT = [node("Add", ["x", "three"], ["s"]), node("Clip", ["s", "zero", "six"], ["p"])]
SWISH: dict[str, Nodes] = {
    "(x·c)/6": [*SHIFT, node("Mul", ["x", "p"], ["h"]), node("Div", ["h", "six"], ["y"], "last")],
    "x·(c/6)": [*SHIFT, node("Div", ["p", "six"], ["h"]), node("Mul", ["x", "h"], ["y"], "last")],
    "x·(c·⅙)": [*SHIFT, node("Mul", ["p", "sixth"], ["h"]), node("Mul", ["h", "x"], ["y"], "last")],
    "(x·⅙)·c": [*SHIFT, node("Mul", ["sixth", "x"], ["h"]), node("Mul", ["h", "p"], ["y"], "last")],
    "hardsigmoid": [
        node("HardSigmoid", ["x"], ["h"], alpha=1 / 6, beta=0.5),
        node("Mul", ["x", "h"], ["y"], "last"),
    ],
}

NUMBERS = {
    "root": ROOT,
    "inverse": 1 / ROOT,
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "zero": 0.0,
    "six": 6.0,
    "sixth": 1 / 6,
    "cube": 0.044715,
    "scale": math.sqrt(2 / math.pi),
}


def build(
    nodes: Nodes, opset: int = 20, dtype: Any = np.float32, arrays: Arrays | None = None, **numbers: float
) -> onnx.ModelProto:
    read = {name for n in nodes for name in n.input}
    constants = {k: np.array(v, dtype) for k, v in (NUMBERS | numbers).items() if k in read}
    constants |= {k: np.asarray(v, dtype) for k, v in (arrays or {}).items()}
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(
        nodes, [tensor("x", [2, 5, 8], element)], [tensor("y", [2, 5, 8], element)], constants, opset=opset
    )


def fuse(m: Any) -> None:
    shapes.infer(m)
    fusions.fuse(m)


def check(proto: onnx.ModelProto, op: str, dtype: Any = np.float32) -> None:
    tolerance = 1e-5 if dtype != np.float16 else 5e-3
    x = np.linspace(-5, 5, 80).reshape(2, 5, 8).astype(dtype)
    found = before_and_after(proto, fuse, {"x": x}, tolerance, tolerance)
    assert ops(found) == [op]
    assert found.graph[0].name == "last"
    assert found.graph[0].outputs[0].name == "y"
    assert not found.graph.initializers or op == "LayerNormalization"
    assert fusions.fuse(found) == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("variant", GELU)
def test_gelu_by_erf(variant: str, dtype: Any) -> None:
    if dtype == np.float16:
        found = io.load(build(GELU[variant], dtype=dtype))  # the runtime has no Erf in half precision
        normalize(found)
        fuse(found)
        assert ops(found) == ["Gelu"]
        return
    check(build(GELU[variant], dtype=dtype), "Gelu", dtype)


@pytest.mark.parametrize("variant", TANH)
def test_gelu_by_tanh(variant: str) -> None:
    proto = build(TANH[variant])
    check(proto, "Gelu")
    found = io.load(proto)
    fuse(found)
    assert query.attribute(found.graph[0], "approximate") == "tanh"


@pytest.mark.parametrize("opset", [14, 18])
@pytest.mark.parametrize("variant", SWISH)
def test_hard_swish(variant: str, opset: int) -> None:
    check(build(SWISH[variant], opset), "HardSwish")


def test_hard_swish_of_opset_ten_has_bounds_as_attributes() -> None:
    nodes = [
        node("Add", ["x", "three"], ["s"], "shift"),
        node("Clip", ["s"], ["p"], "clip", min=0.0, max=6.0),
        node("Mul", ["x", "p"], ["h"], "product"),
        node("Div", ["h", "six"], ["y"], "last"),
    ]
    found = before_and_after(build(nodes, 10), fuse)
    assert ops(found) == ["HardSigmoid", "Mul"]
    assert {meta.unit(n) for n in found.graph} == {"HardSwish:last"}


@pytest.mark.parametrize("variant", SWISH)
def test_hard_swish_of_an_older_opset_is_written_in_two_nodes(variant: str) -> None:
    found = before_and_after(build(SWISH[variant], 13), fuse)
    assert ops(found) == ["HardSigmoid", "Mul"]
    assert found.graph[1].name == "last"
    assert {meta.unit(n) for n in found.graph} == {"HardSwish:last"}
    assert fusions.fuse(found) == {}


def norm(
    square: Nodes, tail: Nodes, mean: str = "d", axes: list[int] | None = None, opset: int = 17
) -> Nodes:
    """A layer normalization: the mean off, the square's mean, the quotient, then the tail."""

    def reduce(source: str, result: str) -> onnx.NodeProto:
        if opset >= 18:
            return node("ReduceMean", [source, "axes"], [result])
        return node("ReduceMean", [source], [result], axes=axes or [-1])

    return [
        reduce("x", "m"),
        node("Sub", ["x", "m"], ["d"]),
        *square,
        reduce("q", "v"),
        node("Add", ["v", "eps"], ["ve"]),
        node("Sqrt", ["ve"], ["sd"]),
        node("Div", [mean, "sd"], ["n"]),
        *tail,
    ]


POW = [node("Pow", ["d", "two"], ["q"])]
SCALE = [node("Mul", ["n", "gamma"], ["y"], "last")]
BOTH = [node("Mul", ["gamma", "n"], ["g"]), node("Add", ["g", "beta"], ["y"], "last")]
NORMS = {
    "Pow": norm(POW, BOTH),
    "Mul": norm([node("Mul", ["d", "d"], ["q"])], BOTH),
    "no shift": norm(POW, SCALE),
    "positive axis": norm(POW, BOTH, axes=[2]),
    "two differences": norm([node("Sub", ["x", "m"], ["d2"]), node("Pow", ["d2", "two"], ["q"])], BOTH),
}
PARAMETERS = {
    "gamma": np.random.default_rng(0).uniform(0.5, 2, 8),
    "beta": np.random.default_rng(1).standard_normal(8),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", NORMS)
def test_layer_norm(variant: str, dtype: Any) -> None:
    used = {k: v for k, v in PARAMETERS.items() if any(k in n.input for n in NORMS[variant])}
    check(build(NORMS[variant], 17, dtype, used, eps=1e-5), "LayerNormalization", dtype)


def test_layer_norm_of_opset_eighteen_has_axes_as_input() -> None:
    proto = build(norm(POW, BOTH, opset=18), 18, arrays=PARAMETERS, eps=1e-5)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([-1]), "axes"))
    found = before_and_after(proto, fuse)
    assert ops(found) == ["LayerNormalization"]


def test_layer_norm_over_two_axes() -> None:
    arrays = {k: np.resize(v, (5, 8)) for k, v in PARAMETERS.items()}
    proto = build(norm(POW, BOTH, axes=[1, 2]), 17, arrays=arrays, eps=1e-5)
    found = before_and_after(proto, fuse)
    assert ops(found) == ["LayerNormalization"]
    assert query.attribute(found.graph[0], "axis") == -2


@pytest.mark.parametrize(
    ("nodes", "opset", "unit"),
    [
        (GELU["(x·½)·p"], 17, "Gelu:last"),
        (TANH["Pow"], 19, "Gelu:last"),
        (NORMS["Pow"], 13, "LayerNormalization:last"),
    ],
    ids=["gelu", "tanh", "norm"],
)
def test_an_older_opset_gets_marks_instead(nodes: Nodes, opset: int, unit: str) -> None:
    used = {k: v for k, v in PARAMETERS.items() if any(k in n.input for n in nodes)}
    found = before_and_after(build(nodes, opset, arrays=used, eps=1e-5), fuse)
    assert len(found.graph) == len(nodes)
    assert {meta.unit(n) for n in found.graph} == {unit}
    assert fusions.fuse(found) == {}


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        (GELU["(x·½)·p"], {"half": 0.4}),
        (GELU["(x·½)·p"], {"root": 1.5}),
        (GELU["(x·p)·½"], {"one": 1.1}),
        (TANH["Pow"], {"cube": 0.05}),
        (TANH["Pow"], {"three": 2.0}),
        (TANH["x·x·x"], {"scale": 0.7}),
        (SWISH["(x·c)/6"], {"three": 2.5}),
        (SWISH["(x·c)/6"], {"six": 5.0}),
        (SWISH["x·(c·⅙)"], {"zero": -1.0}),
        (NORMS["Pow"], {"two": 3.0}),
        ([node("HardSigmoid", ["x"], ["h"], alpha=0.2), node("Mul", ["x", "h"], ["y"])], {}),
        (norm(POW, BOTH, axes=[1]), {}),
    ],
)
def test_another_constant_is_another_function(nodes: Nodes, numbers: dict[str, float]) -> None:
    used = {k: v for k, v in PARAMETERS.items() if any(k in n.input for n in nodes)}
    opset = 17 if _uses_axes(nodes) else 20
    found = before_and_after(build(nodes, opset, arrays=used, **({"eps": 1e-5} | numbers)), fuse)
    assert len(found.graph) == len(nodes)
    assert not any(meta.unit(n) for n in found.graph)


def _uses_axes(nodes: Nodes) -> bool:
    return any(a.name == "axes" for n in nodes for a in n.attribute)


@pytest.mark.parametrize(
    ("nodes", "middle"),
    [
        (GELU["(x·½)·p"], "e"),
        (GELU["(x·½)·p"], "h"),
        (SWISH["(x·c)/6"], "p"),
        (NORMS["Pow"], "d"),
        (NORMS["Pow"], "n"),
    ],
)
@pytest.mark.parametrize("reader", ["node", "output"])
def test_a_result_that_something_else_sees_is_kept(nodes: Nodes, middle: str, reader: str) -> None:
    used = {k: v for k, v in PARAMETERS.items() if any(k in n.input for n in nodes)}
    proto = build(nodes, 17, arrays=used, eps=1e-5)
    if reader == "node":
        proto.graph.node.append(node("Neg", [middle], ["z"]))
    proto.graph.output.append(tensor("z" if reader == "node" else middle, None))
    found = before_and_after(proto, fuse)
    assert len(found.graph) == len(nodes) + (reader == "node")
    assert not any(meta.unit(n) for n in found.graph)


def test_another_factor_is_no_gelu() -> None:
    nodes = erf(DIV, [node("Mul", ["z", "half"], ["h"]), node("Mul", ["h", "p"], ["y"])])
    proto = build(nodes)
    proto.graph.input.append(tensor("z", [2, 5, 8]))
    found = before_and_after(proto, fuse)
    assert "Erf" in ops(found)


def test_upsample_in_a_newer_opset_becomes_resize() -> None:
    nodes = [node("Upsample", ["x", "s"], ["y"], "up", mode="nearest")]
    found = io.load(
        model(
            nodes, [tensor("x", [1, 1, 2, 2])], [tensor("y", None)], {"s": np.float32([1, 1, 2, 2])}, opset=13
        )
    )
    normalize(found)
    assert fusions.fuse(found) == {"Upsample written as Resize": 1}
    from octavo.model.runtime.session import Session

    x = np.float32([[[[1, 2], [3, 4]]]])
    got = Session.open(found).run({"x": x})["y"]
    np.testing.assert_array_equal(got, x.repeat(2, axis=2).repeat(2, axis=3))


@pytest.mark.parametrize(
    ("bias", "x", "flat"),
    [
        ((1, 3), (2, 4), True),
        ((1, 1, 3), (5, 2, 4), True),
        ((1, 1, 3), (2, 4), False),
        ((2, 3), (2, 4), False),
    ],
    ids=["row", "row of rank 3", "a rank more", "a matrix"],
)
def test_a_bias_of_one_row_becomes_a_vector(bias: tuple[int, ...], x: tuple[int, ...], flat: bool) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3)).astype(np.float32),
        "b": rng.standard_normal(bias).astype(np.float32),
    }
    nodes = [node("MatMul", ["x", "w"], ["p"]), node("Add", ["b", "p"], ["y"])]
    found = before_and_after(model(nodes, [tensor("x", x)], [tensor("y", None)], weights), prepare)
    layer = query.linear_layer(found.graph[0])
    assert layer is not None
    assert (layer.bias is not None) is flat
