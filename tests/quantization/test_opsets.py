"""Old opsets and undeclared types: a model is raised as far as something needs it, and no further."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto
from quantizing import run, weights

import octavo.quantization as q

from .peer import Reader, samples

F32 = np.float32


def upsampling(opset: int, op: str = "Upsample") -> onnx.ModelProto:
    """``Conv → Upsample → Reshape → MatMul``; exporters wrote it at opset 10, which has none."""
    return model(
        [
            node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
            node(op, ["c", "scales"], ["u"], "up", mode="nearest"),
            node("Reshape", ["u", "flat"], ["r"], "flatten"),
            node("MatMul", ["r", "m"], ["y"], "product"),
        ],
        [tensor("x", [1, 3, 8, 8])],
        [tensor("y", [1, 5])],
        {
            "w": weights(4, 3, 3, 3),
            "scales": F32([1, 1, 2, 2]),
            "flat": np.int64([1, -1]),
            "m": weights(1024, 5),
        },
        opset=opset,
    )


def default_opset(proto: onnx.ModelProto) -> int:
    return next(entry.version for entry in proto.opset_import if entry.domain == "")


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


FEEDS = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(F32)}


@pytest.mark.parametrize("opset", [9, 10])
def test_preparing_writes_upsample_as_resize_at_opset_11(opset: int, tmp_path: Path) -> None:
    onnx.save(upsampling(opset), tmp_path / "m.onnx")
    q.quant_pre_process(tmp_path / "m.onnx", tmp_path / "p.onnx")
    made = onnx.load(tmp_path / "p.onnx")
    assert default_opset(made) == 11
    assert op_types(made) == ["Conv", "Resize", "Reshape", "MatMul"]
    np.testing.assert_allclose(run(made, FEEDS)["y"], run(upsampling(9), FEEDS)["y"], rtol=1e-5)


def test_dynamic_quantization_leaves_upsample_alone_where_nothing_needs_a_newer_opset(tmp_path: Path) -> None:
    proto = upsampling(10)
    with pytest.warns(UserWarning, match="Nothing in the model was quantized"):
        q.quantize_dynamic(proto, tmp_path / "q.onnx", op_types_to_quantize=["LSTM"])
    made = onnx.load(tmp_path / "q.onnx")
    assert (default_opset(made), op_types(made)) == (10, op_types(proto))


def test_dynamic_quantization_of_a_model_with_upsample_gives_one_that_runs(tmp_path: Path) -> None:
    q.quantize_dynamic(upsampling(10), tmp_path / "q.onnx", op_types_to_quantize=["MatMul"])
    made = onnx.load(tmp_path / "q.onnx")
    assert default_opset(made) == 11  # DynamicQuantizeLinear begins there
    want = run(upsampling(9), FEEDS)["y"]
    assert np.abs(run(made, FEEDS)["y"] - want).max() < 0.05 * np.abs(want).max()


def old(op: str, *rest: str, arrays: dict[str, Any] | None = None, **attributes: Any) -> onnx.ModelProto:
    """``Conv → op → Mul`` of opset 10."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["t"], "conv", pads=[1] * 4),
        node(op, ["t", *rest], ["u"], "op", **attributes),
        node("Mul", ["u", "k"], ["y"], "last"),
    ]
    consts = {"w": weights(4, 4, 3, 3), "b": weights(4, seed=1), "k": F32([1.5]), **(arrays or {})}
    return model(nodes, [tensor("x", [1, 4, 6, 6])], [tensor("y", None)], consts, opset=10)


OLD = {
    "Relu": old("Relu"),
    "Clip": old("Clip", min=-1.0, max=2.0),
    "AveragePool": old("AveragePool", kernel_shape=[2, 2]),
    "Softmax": old("Softmax", axis=1),
    "Squeeze": old("Squeeze", axes=[0]),
    "Slice": old("Slice", "from", "to", arrays={"from": np.int64([0]), "to": np.int64([1])}),
    "Resize": old("Resize", "scales", arrays={"scales": F32([1, 1, 2, 2])}, mode="nearest"),
    "Concat": old("Concat", "more", arrays={"more": weights(1, 4, 6, 6)}, axis=1),
    "MaxPool": old("MaxPool", kernel_shape=[2, 2]),
    "Pad": old("Pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="constant", value=0.0),
}  # fmt: skip
NEEDS = {
    ("MaxPool", q.QuantFormat.QOperator): 12,
    ("Pad", q.QuantFormat.QOperator): 11,
}  # integers begin there


@pytest.mark.parametrize("style", list(q.QuantFormat))
@pytest.mark.parametrize("op", OLD)
def test_a_model_of_opset_10_stays_there_where_nothing_needs_more(
    op: str, style: q.QuantFormat, tmp_path: Path
) -> None:
    proto = OLD[op]
    q.quantize_static(
        proto, tmp_path / "q.onnx", Reader(samples(proto)), style, activation_type=q.QuantType.QUInt8
    )
    made = onnx.load(tmp_path / "q.onnx")
    assert default_opset(made) == NEEDS.get((op, style), 10)
    for feeds in samples(proto):
        want = run(proto, feeds)["y"]
        assert np.abs(run(made, feeds)["y"] - want).max() < 0.12 * np.abs(want).max()


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"per_channel": True}, 13),
        ({"activation_type": q.QuantType.QUInt16}, 21),
        ({"weight_type": q.QuantType.QInt4, "extra_options": {"BlockSize": 16}}, 21),
        ({"extra_options": {"TensorQuantOverrides": {"w": [{"axis": 1}]}}}, 13),
    ],
)
def test_what_needs_a_newer_opset_gets_it(settings: dict[str, Any], expected: int, tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", [2, 32])],
        [tensor("y", [2, 8])],
        {"w": weights(32, 8)},
        opset=10,
    )
    settings = {"activation_type": q.QuantType.QUInt8, **settings}
    q.quantize_static(proto, tmp_path / "q.onnx", Reader(samples(proto)), **settings)
    made = onnx.load(tmp_path / "q.onnx")
    assert default_opset(made) == expected
    for feeds in samples(proto):
        want = run(proto, feeds)["y"]
        assert np.abs(run(made, feeds)["y"] - want).max() < 0.3 * np.abs(want).max()


def test_the_type_of_a_contrib_operators_result_is_that_of_the_product_behind_it(tmp_path: Path) -> None:
    proto = model(
        [
            node("Attention", ["x", "w", "b"], ["a"], "attention", domain="com.microsoft", num_heads=2),
            node("MatMul", ["a", "m"], ["y"], "product"),
        ],
        [tensor("x", [1, 4, 8])],
        [tensor("y", [1, 4, 6], TensorProto.FLOAT)],
        {"w": weights(8, 24), "b": weights(24, seed=1), "m": weights(8, 6)},
    )
    del proto.graph.value_info[:]
    if "com.microsoft" not in {entry.domain for entry in proto.opset_import}:
        proto.opset_import.add(domain="com.microsoft", version=1)
    q.quantize_dynamic(proto, tmp_path / "q.onnx")
    made = onnx.load(tmp_path / "q.onnx")
    assert {"QAttention", "MatMulInteger"} <= set(op_types(made))
    for feeds in samples(proto):
        want = run(proto, feeds)["y"]
        assert np.abs(run(made, feeds)["y"] - want).max() < 0.05 * np.abs(want).max()
