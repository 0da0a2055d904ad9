"""Debugging helpers on pairs of models whose errors can be computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, numpy_helper

from octavo.model.runtime.session import Session
from octavo.quantization import qdq_loss_debug as debug
from octavo.quantization import quant_utils as qu
from quantization.readers import ListReader

F32 = np.float32
RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 4)).astype(F32)
SAMPLES = [{"x": RNG.standard_normal((n, 8)).astype(F32)} for n in (1, 2, 3)]


def plain() -> onnx.ModelProto:
    """``y = relu(x · w)``."""
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Relu", ["m"], ["y"], "r")]
    return model(
        nodes, [tensor("x", ["n", 8])], [tensor("y", ["n", 4])], {"w": WEIGHT}, opset=21, ir_version=10
    )


def twin(
    kind: int, granularity: str = "tensor", symmetric: bool = False
) -> tuple[onnx.ModelProto, np.ndarray]:
    """The same as QDQ with this weight type, and the weight that the runtime computes with."""
    axis, attributes = None, {}
    zero, scale = qu.compute_data_quant_params(WEIGHT, kind, symmetric)
    if granularity == "channel":
        axis = attributes["axis"] = 1
        zero, scale = qu.compute_scale_zp(WEIGHT.min(0), WEIGHT.max(0), *qu.get_qmin_qmax_for_qType(kind))
    elif granularity == "block":
        axis, attributes = 0, {"axis": 0, "block_size": 4}
        zero, scale = qu.compute_scale_zp_blocked(WEIGHT, kind, 0, 4, False)
    stored = qu.quantize_onnx_initializer(
        numpy_helper.from_array(WEIGHT, "w"), kind, zero, scale, axis, None, attributes.get("block_size", 0)
    )
    nodes = [
        node(
            "DequantizeLinear",
            ["w_quantized", "w_scale", "w_zero_point"],
            ["w_DequantizeLinear_Output"],
            **attributes,
        ),
        node("QuantizeLinear", ["x", "s", "z"], ["x_QuantizeLinear_Output"]),
        node("DequantizeLinear", ["x_QuantizeLinear_Output", "s", "z"], ["x_DequantizeLinear_Output"]),
        node("MatMul", ["x_DequantizeLinear_Output", "w_DequantizeLinear_Output"], ["m"], "mm"),
        node("Relu", ["m"], ["y_QuantizeLinear_Input"], "r"),
        node("QuantizeLinear", ["y_QuantizeLinear_Input", "s", "z"], ["y_QuantizeLinear_Output"]),
        node("DequantizeLinear", ["y_QuantizeLinear_Output", "s", "z"], ["y"]),
    ]
    arrays = {
        "w_scale": np.asarray(scale),
        "w_zero_point": np.asarray(zero).astype(qu.ONNX_TYPE_TO_NP_TYPE[kind]),
        "s": F32(0.05),
        "z": np.uint8(128),
    }
    proto = model(nodes, [tensor("x", ["n", 8])], [tensor("y", ["n", 4])], arrays, opset=21, ir_version=10)
    proto.graph.initializer.append(stored)
    only = onnx.ModelProto()
    only.CopyFrom(proto)
    del only.graph.node[1:], only.graph.input[:], only.graph.output[:]
    only.graph.output.append(tensor("w_DequantizeLinear_Output", None))
    return proto, Session.open(only.SerializeToString()).run({})["w_DequantizeLinear_Output"]


def sqnr(x: np.ndarray, y: np.ndarray) -> float:
    wide = x.astype(np.float64), y.astype(np.float64)
    return float(20 * np.log10(np.linalg.norm(wide[0]) / np.linalg.norm(wide[0] - wide[1])))


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    onnx.save(plain(), tmp_path / "float.onnx")
    onnx.save(twin(TensorProto.INT8, symmetric=True)[0], tmp_path / "qdq.onnx")
    return str(tmp_path / "float.onnx"), str(tmp_path / "qdq.onnx")


KINDS = [
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.UINT16,
    TensorProto.INT4,
    TensorProto.UINT4,
]


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_back_as_the_runtime_computes_with_them(
    tmp_path: Path, kind: int, granularity: str
) -> None:
    proto, wanted = twin(kind, granularity)
    onnx.save(plain(), tmp_path / "f.onnx")
    onnx.save(proto, tmp_path / "q.onnx")
    matching = debug.create_weight_matching(str(tmp_path / "f.onnx"), str(tmp_path / "q.onnx"))
    assert list(matching) == ["w"]
    np.testing.assert_array_equal(matching["w"]["float"], WEIGHT)
    np.testing.assert_allclose(matching["w"]["dequantized"], wanted, rtol=1e-6, atol=1e-7)
    error = debug.compute_weight_error(matching)["w"]
    assert error == pytest.approx(sqnr(WEIGHT, wanted), abs=0.01)
    assert error > (10 if qu.get_qrange_for_qType(kind) < 16 else 40)


def test_weight_with_a_pair_around_it_and_a_constant_node_are_matched(tmp_path: Path) -> None:
    value = numpy_helper.from_array(WEIGHT)
    before = model(
        [node("Constant", [], ["w"], value=value), node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", ["n", 8])],
        [tensor("y", ["n", 4])],
    )
    after = model(
        [
            node("QuantizeLinear", ["w", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            node("MatMul", ["x", "d"], ["y"]),
        ],
        [tensor("x", ["n", 8])],
        [tensor("y", ["n", 4])],
        {"w": WEIGHT, "s": F32(0.02), "z": np.int8(0)},
    )
    onnx.save(before, tmp_path / "f.onnx")
    onnx.save(after, tmp_path / "q.onnx")
    found = debug.create_weight_matching(tmp_path / "f.onnx", tmp_path / "q.onnx")
    assert np.max(np.abs(found["w"]["float"] - found["w"]["dequantized"])) <= 0.0101


def test_augmented_model_returns_all_float_tensors(paths: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "a.onnx"
    debug.modify_model_output_intermediate_tensors(paths[0], out)
    found = debug.collect_activations(str(out), ListReader(SAMPLES))
    assert set(found) == {"x", "m", "y"}
    assert [len(v) for v in found["m"]] == [4, 8, 12]
    for sample, got in zip(SAMPLES, found["m"], strict=True):
        np.testing.assert_allclose(got, (sample["x"] @ WEIGHT).ravel(), rtol=1e-4, atol=1e-5)


def test_augmented_model_can_be_narrowed_and_keep_its_weights_beside(tmp_path: Path) -> None:
    out, wide = tmp_path / "a.onnx", plain()
    wide.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.repeat(WEIGHT, 64, axis=1), "w"))
    wide.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 256
    onnx.save(wide, tmp_path / "m.onnx")
    debug.modify_model_output_intermediate_tensors(
        str(tmp_path / "m.onnx"), out, ["Relu"], save_as_external_data=True
    )
    assert (tmp_path / "a.onnx.data").stat().st_size == 64 * WEIGHT.nbytes
    assert set(debug.collect_activations(str(out), ListReader(SAMPLES))) == {"m", "y"}


def test_runtime_options_and_providers_are_passed_on(paths: tuple[str, str], tmp_path: Path) -> None:
    import onnxruntime

    out = tmp_path / "a.onnx"
    debug.modify_model_output_intermediate_tensors(paths[0], out)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")
    debug.collect_activations(str(out), ListReader(SAMPLES), options, ["CPUExecutionProvider"])
    assert (tmp_path / "seen.onnx").exists()


def collected(path: str, folder: Path) -> dict[str, list[Any]]:
    out = folder / f"{Path(path).stem}.augmented.onnx"
    debug.modify_model_output_intermediate_tensors(path, out)
    return debug.collect_activations(str(out), ListReader(SAMPLES))


def test_activations_are_matched_and_their_errors_computed(paths: tuple[str, str], tmp_path: Path) -> None:
    plain_values, values = (collected(path, tmp_path) for path in paths)
    matching = debug.create_activation_matching(values, plain_values)
    assert set(matching) == {"x", "y"}
    assert set(matching["y"]) == {"pre_qdq", "post_qdq", "float"}
    errors = debug.compute_activation_error(matching)
    x = np.concatenate([s["x"].ravel() for s in SAMPLES])
    rounded = (np.clip(np.rint(x / F32(0.05)), -128, 127) * F32(0.05)).astype(F32)
    assert errors["x"]["qdq_err"] == pytest.approx(sqnr(x, rounded), abs=0.01)
    y = np.concatenate([np.maximum(s["x"] @ WEIGHT, 0).ravel() for s in SAMPLES])
    got = np.concatenate(values["y"])
    assert errors["y"]["xmodel_err"] == pytest.approx(sqnr(y, got), abs=0.05)


def test_errors_without_a_float_model_have_no_cross_model_part(
    paths: tuple[str, str], tmp_path: Path
) -> None:
    matching = debug.create_activation_matching(collected(paths[1], tmp_path))
    assert all(set(error) == {"qdq_err"} for error in debug.compute_activation_error(matching).values())
    partly = debug.create_activation_matching(
        collected(paths[1], tmp_path), {"y": collected(paths[0], tmp_path)["y"]}
    )
    errors = debug.compute_activation_error(partly)
    assert (set(errors["x"]), set(errors["y"])) == ({"qdq_err"}, {"qdq_err", "xmodel_err"})


def test_error_function_may_be_the_users_own() -> None:
    weights = {"w": {"float": np.ones(3, F32), "dequantized": np.zeros(3, F32)}}
    assert debug.compute_weight_error(weights, lambda x, y: float(np.abs(x - y).sum())) == {"w": 3}


def test_ratio_is_over_all_arrays_and_finite_without_noise() -> None:
    x = [np.array([1, 2], F32), np.array([3], F32)]
    y = [np.array([1, 2.5], F32), np.array([3], F32)]
    wanted = 20 * np.log10(np.sqrt(14) / 0.5)
    assert debug.compute_signal_to_quantization_noice_ratio(x, y) == pytest.approx(wanted)
    without = 20 * np.log10(np.sqrt(5) / np.finfo(np.float64).eps)
    assert debug.compute_signal_to_quantization_noice_ratio(x[0], x[0]) == pytest.approx(without)
    assert debug.compute_signal_to_quantization_noice_ratio(0 * x[0], 0 * x[0]) == 0
    with pytest.raises(RuntimeError, match="as many of both"):
        debug.compute_signal_to_quantization_noice_ratio(x, y[:1])


def test_suffix_is_importable_from_here() -> None:
    assert debug.QUANT_INPUT_SUFFIX == "_QuantizeLinear_Input"


@pytest.mark.peer
def test_errors_agree_with_stock_where_zero_points_are_zero(paths: tuple[str, str], tmp_path: Path) -> None:
    stock = pytest.importorskip("onnxruntime.quantization.qdq_loss_debug", exc_type=ImportError)
    ours = debug.compute_weight_error(debug.create_weight_matching(*paths))
    theirs = stock.compute_weight_error(stock.create_weight_matching(*paths))
    assert ours == pytest.approx(theirs, abs=1e-3)
    values = collected(paths[1], tmp_path)
    matching = debug.create_activation_matching(values, collected(paths[0], tmp_path))
    wanted = stock.compute_activation_error(
        stock.create_activation_matching(values, collected(paths[0], tmp_path))
    )
    found = debug.compute_activation_error(matching)
    assert {k: pytest.approx(v, abs=1e-3) for k, v in wanted.items()} == found
