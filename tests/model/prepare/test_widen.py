"""Models of other float types: computed in float32, the same from outside."""

from __future__ import annotations

from typing import Any

import builders
import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto
from quantizing import EVERYWHERE, error, feeds_for, ops, weights

import octavo
from octavo.model.files import io
from octavo.model.prepare import prepare
from octavo.model.prepare.widen import widen
from octavo.model.runtime.session import Session
from octavo.model.runtime.session_inputs import check


def linear_net(kind: Any) -> onnx.ModelProto:
    """Two linear layers; the runtime has no Conv for doubles."""
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    arrays = {"w": weights(16, 16) / 4, "b": weights(16, seed=1), "v": weights(16, 8, seed=2) / 4}
    return model(
        [
            node("Gemm", ["x", "w", "b"], ["h"], "Gemm_0"),
            node("Relu", ["h"], ["r"], "Relu_0"),
            node("Gemm", ["r", "v"], ["y"], "Gemm_1"),
        ],
        [tensor("x", ["n", 16], element)],
        [tensor("y", ["n", 8], element)],
        {name: array.astype(kind) for name, array in arrays.items()},
    )


NETS = {"float16": builders.conv_net(dtype=np.float16), "double": linear_net(np.float64)}


def signature(proto: onnx.ModelProto) -> list[tuple[str, int]]:
    return [(v.name, v.type.tensor_type.elem_type) for v in (*proto.graph.input, *proto.graph.output)]


def widened(proto: onnx.ModelProto) -> onnx.ModelProto:
    found = io.load(proto)
    prepare(found)
    assert widen(found)
    assert widen(found) == 0
    return io.to_proto(found)


@pytest.mark.parametrize("proto", NETS.values(), ids=NETS)
@pytest.mark.parametrize("style", ["qdq", "qoperator", "integer"])
def test_a_model_of_another_float_type_is_quantized_and_keeps_its_signature(
    proto: onnx.ModelProto, style: str
) -> None:
    data = feeds_for(proto)
    result = octavo.quantize(
        proto, None if style == "integer" else data, style=style, op_types=["Conv", "Gemm"]
    )
    assert "Gemm" in result.plan.counts()
    assert signature(io.to_proto(result.model)) == signature(proto)
    assert error(result, proto, data) < 0.08
    assert any("computed in float32" in note for note in result.notes)


@pytest.mark.parametrize("proto", NETS.values(), ids=NETS)
def test_widening_alone_computes_the_same(proto: onnx.ModelProto) -> None:
    feeds = feeds_for(proto)[0]
    want = Session.open(proto.SerializeToString()).run(feeds)["y"]
    got = Session.open(widened(proto).SerializeToString()).run(feeds)["y"]
    assert got.dtype == want.dtype
    near = 1e-2 if want.dtype == np.float16 else 1e-5
    assert np.allclose(got, want, rtol=near, atol=near)


def bfloat16_net() -> onnx.ModelProto:
    proto = builders.conv_net(opset=22)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    for item in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(item).astype(ml_dtypes.bfloat16)
        item.CopyFrom(
            onnx.helper.make_tensor(item.name, TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
        )
    return proto


def test_a_bfloat16_model_is_calibrated_with_bfloat16_samples_and_written() -> None:
    proto = bfloat16_net()
    data = [{"x": weights(1, 3, 8, 8, seed=i).astype(ml_dtypes.bfloat16)} for i in range(3)]
    result = octavo.quantize(proto, data, effort="plain")
    assert result.plan.counts()["Conv"] == 1
    assert signature(io.to_proto(result.model)) == signature(proto)
    check(result.model)
    assert Session.open(result.model).run(data[0])["y"].dtype == ml_dtypes.bfloat16


def test_a_bfloat16_model_is_right() -> None:
    plain = builders.conv_net(opset=22)
    data = [{"x": weights(1, 3, 8, 8, seed=i).astype(ml_dtypes.bfloat16)} for i in range(3)]
    result = octavo.quantize(bfloat16_net(), data, effort="plain")
    got = Session.open(result.model).run(data[0])["y"].astype(np.float32)
    want = Session.open(plain.SerializeToString()).run({"x": data[0]["x"].astype(np.float32)})["y"]
    assert np.abs(got - want).max() < 0.1 * np.abs(want).max()


def test_casts_between_float_types_vanish() -> None:
    proto = model(
        [
            node("Cast", ["w16"], ["w"], "cw", to=TensorProto.FLOAT),
            node("Cast", ["x"], ["x32"], "cx", to=TensorProto.FLOAT),
            node("MatMul", ["x32", "w"], ["m"], "mm"),
            node("Cast", ["m"], ["y"], "cy", to=TensorProto.FLOAT16),
        ],
        [tensor("x", [2, 64], TensorProto.FLOAT16)],
        [tensor("y", [2, 64], TensorProto.FLOAT16)],
        {"w16": weights(64, 64).astype(np.float16)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert "mm" in result.plan.nodes
    assert ops(result)["Cast"] == 2
    assert result.bytes < 0.6 * result.float_bytes
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("dynamic", [True, False])
def test_weights_that_stay_float_are_stored_in_half_precision(dynamic: bool) -> None:
    half = TensorProto.FLOAT16
    proto = model(
        [
            node("MatMul", ["x", "w"], ["h"], "mm"),
            node("MatMul", ["h", "v"], ["y"], "float_mm"),
        ],
        [tensor("x", [2, 64], half)],
        [tensor("y", [2, 64], half)],
        {
            "w": (weights(64, 64) / 8).astype(np.float16),
            "v": (weights(64, 64, seed=1) / 8).astype(np.float16),
        },
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, None if dynamic else data, exclude=["float_mm"], effort="plain")
    assert result.model.graph.initializers["v"].dtype.name == "FLOAT16"
    assert result.bytes < 0.8 * result.float_bytes
    assert error(result, proto, data) < 0.05


def test_bodies_of_loops_and_branches_are_widened() -> None:
    half = TensorProto.FLOAT16

    def branch(op: str) -> onnx.GraphProto:
        return graph(
            [node(op, ["h", "k"], ["o"], op)],
            [],
            [tensor("o", [2, 16], half)],
            {"k": np.float16([2])},
            name=op,
        )

    body = graph(
        [
            node("MatMul", ["s", "w"], ["t"], "mm"),
            node("Tanh", ["t"], ["n"], "th"),
            node("Identity", ["g"], ["g2"], "id"),
        ],
        [tensor("i", [], TensorProto.INT64), tensor("g", [], TensorProto.BOOL), tensor("s", [2, 16], half)],
        [tensor("g2", [], TensorProto.BOOL), tensor("n", [2, 16], half)],
        name="body",
    )
    proto = model(
        [
            node("Loop", ["count", "", "x"], ["h"], "Loop_0", body=body),
            node("If", ["c"], ["y"], "If_0", then_branch=branch("Mul"), else_branch=branch("Add")),
        ],
        [tensor("x", [2, 16], half), tensor("c", [], TensorProto.BOOL)],
        [tensor("y", [2, 16], half)],
        {"count": np.int64(2), "w": (weights(16, 16) / 4).astype(np.float16)},
    )
    data = feeds_for(proto)
    assert error(octavo.quantize(proto, data, recipe=EVERYWHERE), proto, data) < 0.06


def test_inputs_that_are_outputs_and_outputs_named_twice_stay() -> None:
    half = TensorProto.FLOAT16
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "mm"), node("Identity", ["x"], ["z"], "same")],
        [tensor("x", [2, 16], half), tensor("unused", [1], half)],
        [tensor("y", [2, 16], half), tensor("z", [2, 16], half)],
        {"w": weights(16, 16).astype(np.float16)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert signature(io.to_proto(result.model)) == signature(proto)
    got = Session.open(result.model).run(data[0])
    assert np.array_equal(got["z"], data[0]["x"])


def test_a_constant_output_keeps_its_type_and_value() -> None:
    half = TensorProto.FLOAT16
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "mm")],
        [tensor("x", [2, 16], half)],
        [tensor("y", [2, 16], half), tensor("k", [3], half)],
        {"w": weights(16, 16).astype(np.float16), "k": np.float16([1, 2, 3])},
    )
    result = octavo.quantize(proto, feeds_for(proto), effort="plain")
    assert signature(io.to_proto(result.model)) == signature(proto)
    assert Session.open(result.model).run(feeds_for(proto)[0])["k"].tolist() == [1, 2, 3]


def test_a_double_that_no_float32_can_hold_becomes_the_largest_one() -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["m"], "mm"), node("Max", ["m", "low"], ["y"], "max")],
        [tensor("x", [2, 16], TensorProto.DOUBLE)],
        [tensor("y", [2, 16], TensorProto.DOUBLE)],
        {"w": weights(16, 16).astype(np.float64), "low": np.float64(np.finfo(np.float64).min)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    low = result.model.graph.initializers["low"].const_value.numpy()
    assert low == np.finfo(np.float32).min
    assert error(result, proto, data) < 0.05


def test_a_float32_model_is_left_alone() -> None:
    found = io.load(builders.conv_net())
    prepare(found)
    before = io.to_bytes(found)
    assert widen(found) == 0
    assert io.to_bytes(found) == before
