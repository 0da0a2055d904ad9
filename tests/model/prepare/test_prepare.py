"""Preparation as a whole."""

from __future__ import annotations

import time
from pathlib import Path

import builders
import numpy as np
import onnx_ir as ir
import pytest
from builders import model, node, tensor
from onnx import TensorProto

from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare import PrepareOptions, prepare, shapes
from octavo.model.runtime.verification import verify

from .helpers import before_and_after, ops


def test_a_small_net_is_prepared_and_reported() -> None:
    found = before_and_after(builders.conv_net(), prepare)
    assert ops(found) == ["Conv", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    report = prepare(io.load(builders.conv_net()))
    assert "1 batch normalizations folded" in str(report)
    assert [change.pass_name for change in report.changes] == ["shapes", "batch norm"]
    assert str(prepare(found)) == "nothing to prepare"


def test_every_pass_can_be_left_out() -> None:
    options = PrepareOptions(False, False, False, False, False, False, None)
    found = io.load(builders.conv_net())
    assert prepare(found, options).changes == ()
    assert "BatchNormalization" in ops(found)
    assert query.rank(found.graph[0].outputs[0]) is None


def test_runtime_optimization_gives_a_model_that_runs() -> None:
    proto = builders.conv_net()
    found = before_and_after(proto, lambda m: prepare(m, PrepareOptions(runtime_optimization=True)))
    assert "BatchNormalization" not in ops(found)
    assert set(found.opset_imports) == {""}
    verify(found)


def test_shapes_reach_branches() -> None:
    found = io.load(builders.two_branches())
    prepare(found)
    assert all(query.shape(v) == (3,) for n in query.nodes(found) for v in n.outputs)


def test_known_dimensions_are_never_lost() -> None:
    proto = builders.conv_net()
    proto.graph.value_info.append(tensor("conv", [7, 6, "h", "w"]))
    found = io.load(proto)
    prepare(found, PrepareOptions(fold_batch_norm=False))
    assert query.shape(found.graph[0].outputs[0]) == (7, 6, 8, 8)


def test_a_failing_inference_is_a_note() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])]
    proto = model(
        nodes, [tensor("x", [1, 3, 8, 8])], [tensor("y", [1])], {"w": np.ones((6, 3, 5, 5), np.float32)}
    )
    report = prepare(io.load(proto), PrepareOptions(symbolic_shapes=True))
    assert isinstance(str(report), str)


def dynamic() -> ir.Model:
    """ONNX inference loses the rank after Reshape to a computed shape; symbolic inference keeps it."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Slice", ["s", "zero", "one"], ["n"]),
        node("Concat", ["n", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["r"]),
        node("Relu", ["r"], ["y"]),
    ]
    arrays = {"zero": np.int64([0]), "one": np.int64([1]), "minus": np.int64([-1])}
    return io.load(model(nodes, [tensor("x", ["n", 3, 4])], [tensor("y", None)], arrays))


def test_symbolic_inference_runs_apart_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sympy")
    monkeypatch.chdir(tmp_path)
    found = dynamic()
    count, notes = shapes.infer_symbolically(found)
    assert count
    assert notes == []
    assert query.rank(found.graph[-1].outputs[0]) == 2
    broken = io.load(
        model(
            [node("Reshape", ["x", "s"], ["r"]), node("Foo", ["r"], ["y"])],
            [tensor("x", [4]), tensor("s", ["k"], TensorProto.INT64)],
            [tensor("y", None)],
        )
    )
    shapes.infer_symbolically(broken)
    assert list(tmp_path.iterdir()) == []


def test_symbolic_inference_without_sympy_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "sympy_is_installed", lambda: False)
    report = prepare(dynamic(), PrepareOptions(symbolic_shapes=True))
    assert any("sympy" in note for note in report.notes)


def test_large_weights_are_not_read() -> None:
    found = io.load(builders.conv_net())
    weight = found.graph.initializers["fc"]

    def forbidden() -> ir.TensorProtocol:
        raise AssertionError("a large weight was read")

    shape = ir.Shape([6, 1 << 30])
    weight.const_value = ir.LazyTensor(forbidden, dtype=ir.DataType.FLOAT, shape=shape, name="fc")
    weight.shape = shape
    found.graph.initializers["fb"].const_value = ir.tensor(np.float32([0]), name="fb")
    prepare(found, PrepareOptions(opset=21))
    assert query.opset(found) == 21


def test_five_thousand_nodes_take_seconds_not_minutes() -> None:
    found = io.load(builders.chain(5000))
    start = time.process_time()
    prepare(found)
    assert time.process_time() - start < 5
