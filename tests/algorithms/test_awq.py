"""AWQ keeps what a model computes, adds no node, and lowers the error of weights in blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.cli.main import main
from octavo.errors import RecipeError

WIDTH = 64


def _model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    gain, outputs = np.ones(WIDTH, np.float32), np.ones(128, np.float32)
    gain[[3, 40]], outputs[[5, 50, 77, 120]] = 20, 10  # both layers read a few channels that are much larger
    weights = {
        "gain": gain,
        "shift": np.zeros(WIDTH, np.float32),
        "up": rng.normal(0, 0.1, (WIDTH, 128)).astype(np.float32) * outputs,
        "down": rng.normal(0, 0.1, (128, WIDTH)).astype(np.float32),
    }
    nodes = [
        helper.make_node("LayerNormalization", ["x", "gain", "shift"], ["normed"], name="norm", axis=-1),
        helper.make_node("MatMul", ["normed", "up"], ["wide"], name="up_proj"),
        helper.make_node("Relu", ["wide"], ["active"], name="relu"),
        helper.make_node("MatMul", ["active", "down"], ["y"], name="down_proj"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", WIDTH])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "block", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _samples(seed: int, count: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(16, WIDTH)).astype(np.float32)} for _ in range(count)]


def _output(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    return ort.InferenceSession(model.SerializeToString()).run(None, feed)[0]


def _quantized(algorithm: str, **options: object) -> onnx.ModelProto:
    result = octavo.quantize(
        _model(), _samples(1), weights="int4", algorithm=algorithm, accuracy_level=0, head="same", **options
    )
    return ir.to_proto(result.model)


def _error(model: onnx.ModelProto) -> float:
    feed = _samples(2, 1)[0]
    exact = _output(_model(), feed)
    return float(((_output(model, feed) - exact) ** 2).mean() / (exact**2).mean())


def test_awq_lowers_the_error_of_rounding_to_nearest_on_other_samples() -> None:
    assert _error(_quantized("rtn", steps="awq")) < 0.7 * _error(_quantized("rtn"))


def test_awq_lowers_the_error_of_the_importance_search_too() -> None:
    assert _error(_quantized("importance", steps="awq")) < _error(_quantized("importance"))


def test_statistics_saved_for_a_plan_serve_it_beside_a_head_of_8_bits() -> None:
    plan = octavo.plan(_model(), weights="int4", algorithm="importance")
    stats = octavo.calibrate(_model(), plan, _samples(1))
    result = octavo.quantize(_model(), stats=stats, weights="int4", algorithm="importance", steps="awq")
    (report,) = result.steps
    assert [change.layer for change in report.changed] == ["up_proj"]
    assert [one.reason for one in report.refused] == ["its 8 bits lose little beside fewer"]


def test_awq_adds_no_node() -> None:
    kinds = [sorted(n.op_type for n in _quantized("rtn", **one).graph.node) for one in ({}, {"steps": "awq"})]
    assert kinds[0] == kinds[1]


def test_the_function_before_rounding_is_unchanged() -> None:
    """Weights of 8 bits in blocks of 16 round so little that a changed function would show."""
    fine = {"weights": "int8", "per": "block:16", "algorithm": "rtn", "accuracy_level": 0, "head": "same"}
    result = octavo.quantize(_model(), _samples(1), steps="awq", **fine)
    assert result.steps[0].changed
    assert _error(ir.to_proto(result.model)) < 1e-4


def test_a_recipe_lists_awq_and_keeps_it_in_its_file(tmp_path: Path) -> None:
    recipe = octavo.W4.but(steps=("awq:grid=4",))
    recipe.save(tmp_path / "recipe.yaml")
    result = octavo.quantize(_model(), _samples(1), recipe=octavo.Recipe.load(tmp_path / "recipe.yaml"))
    assert result.steps[0].changed


def test_the_command_line_takes_awq(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "c.npz", x=np.concatenate([feed["x"] for feed in _samples(1)]))
    given = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx"), "--weights", "int4"]
    assert main([*given, "--head", "same", "--data", str(tmp_path / "c.npz"), "--steps", "awq"]) == 0
    assert "note: awq: scaled 2 of 2 groups" in capsys.readouterr().out
    assert main([*given, "--steps", "awq"]) != 0
    assert "need calibration data" in capsys.readouterr().err


def test_integers_for_activations_leave_awq_without_layers() -> None:
    result = octavo.quantize(_model(), _samples(1), recipe=octavo.W8A8.but(steps=("awq",)))
    assert not result.steps[0].changed
    assert {refusal.reason for refusal in result.steps[0].refused} == {
        "its weights are not quantized in blocks with float activations"
    }


@pytest.mark.parametrize("text", ["awq:alpha=2", "awq:grid=0", "awq:rows=0"])
def test_options_out_of_range_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="awq:"):
        octavo.quantize(_model(), _samples(1), weights="int4", steps=text)


def _reshaped(keeps: bool) -> onnx.ModelProto:
    """A Reshape makes a batch of rows a matrix for the first product, or splits their channels."""
    proto = _model()
    del proto.graph.node[:]
    shape, first = ([-1, WIDTH], WIDTH) if keeps else ([-1, WIDTH // 2], WIDTH // 2)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(shape), "flat_shape"))
    for tensor in proto.graph.initializer:
        if tensor.name == "up":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:first].copy(), "up"))
    proto.graph.node.extend(
        [
            helper.make_node("LayerNormalization", ["x", "gain", "shift"], ["normed"], name="norm", axis=-1),
            helper.make_node("Reshape", ["normed", "flat_shape"], ["flat"], name="flat"),
            helper.make_node("Shape", ["normed"], ["shape"], name="shape"),
            helper.make_node("Gemm", ["flat", "up"], ["wide"], name="up_proj"),
            helper.make_node("Relu", ["wide"], ["active"], name="relu"),
            helper.make_node("Gemm", ["active", "down"], ["y"], name="down_proj"),
        ]
    )
    proto.graph.output.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [3]))
    proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", "rows", WIDTH]))
    return proto


@pytest.mark.parametrize("keeps", [True, False])
def test_scales_are_folded_through_a_reshape_that_keeps_channels_and_no_other(keeps: bool) -> None:
    proto = _reshaped(keeps)
    data = [{"x": feed["x"][None]} for feed in _samples(1)]
    fine = {"weights": "int8", "per": "block:16", "algorithm": "rtn", "accuracy_level": 0, "head": "same"}
    result = octavo.quantize(proto, data, steps="awq", **fine)
    names = [change.layer for change in result.steps[0].changed]
    assert ("up_proj" in names) == keeps
    exact, own = _output(proto, data[0]), _output(ir.to_proto(result.model), data[0])
    assert np.abs(own - exact).mean() < 0.01 * np.abs(exact).mean()
