"""A graph that is run piece by piece gives what the whole gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from octavo.errors import OutputError
from octavo.model.runtime import verification

FLOAT = TensorProto.FLOAT


def _chain(length: int) -> onnx.ModelProto:
    """Additions in a row, of which a late one reads an early one, and an If that reads both by scope."""
    nodes = [helper.make_node("Add", ["x", "w0"], ["a0"])]
    nodes += [helper.make_node("Add", [f"a{i - 1}", f"w{i}"], [f"a{i}"]) for i in range(1, length)]
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["a0", f"a{length - 1}"], [f"{op}_out"])],
            op,
            [],
            [helper.make_tensor_value_info(f"{op}_out", FLOAT, None)],
        )
        for op in ("Sub", "Mul")
    ]
    nodes.append(helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1]))
    nodes.append(helper.make_node("Identity", ["a2"], ["z"]))
    weights = [numpy_helper.from_array(np.array([i, 0.5], np.float32), f"w{i}") for i in range(length)]
    weights.append(numpy_helper.from_array(np.array(True), "yes"))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", FLOAT, [2])],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in ("y", "z")],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _run(part: bytes, feeds: Mapping[str, Any]) -> dict[str, Any]:
    inner = ort.InferenceSession(part, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in inner.get_outputs()], inner.run(None, dict(feeds)), strict=True))


@pytest.mark.parametrize("most", [1, 2, 3, 7, 100])
def test_pieces_give_what_the_whole_gives(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "MOST_NODES", most)
    model, feeds = _chain(9), {"x": np.array([1.5, -2], np.float32)}
    whole = _run(model.SerializeToString(), feeds)
    found = verification.run_in_pieces(model, feeds, _run)
    assert found.keys() == whole.keys() == {"y", "z"}
    for name, value in whole.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_model_with_functions_or_external_weights_is_not_cut() -> None:
    model = _chain(3)
    assert verification.can_be_cut(model)
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    assert not verification.can_be_cut(model)


def test_verify_of_a_graph_of_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "FULL_CHECK", 4)
    monkeypatch.setattr(verification, "MOST_NODES", 3)
    path, feeds = tmp_path / "model.onnx", {"x": np.array([1, 2], np.float32)}
    onnx.save(_chain(9), path)
    verification.verify(path, feeds=feeds, nodes=11)


def test_verify_says_what_is_wrong_with_a_graph_of_many_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "FULL_CHECK", 4)
    monkeypatch.setattr(verification, "MOST_NODES", 3)
    model, path = _chain(9), tmp_path / "model.onnx"
    broken = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w7")
    next(one for one in model.graph.initializer if one.name == "w7").CopyFrom(broken)
    onnx.save(model, path)
    with pytest.raises(OutputError, match="check of"):
        verification.verify(path, feeds={"x": np.array([1, 2], np.float32)}, nodes=11)
