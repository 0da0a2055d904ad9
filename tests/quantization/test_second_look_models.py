"""Models that a user who only changes the import expects: each test is named after what is expected."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import model, node, tensor
from onnx import TensorProto, numpy_helper
from quantizing import run, weights

import octavo.quantization as q
from octavo.quantization import QuantFormat, QuantType, static_quantize_runner
from octavo.quantization._errors import QuantizationWarning
from octavo.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
)

from .peer import Reader, samples


def static(proto: onnx.ModelProto, folder: Path, **settings: Any) -> onnx.ModelProto:
    settings = {"activation_type": QuantType.QUInt8, **settings}
    q.quantize_static(proto, folder / "q.onnx", Reader(samples(proto)), **settings)
    return onnx.load(folder / "q.onnx")


def dynamic(proto: onnx.ModelProto, folder: Path, **settings: Any) -> onnx.ModelProto:
    q.quantize_dynamic(proto, folder / "q.onnx", **settings)
    return onnx.load(folder / "q.onnx")


def stored(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def by_output(proto: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {name: n for n in proto.graph.node for name in n.output}


def far(proto: onnx.ModelProto, made: onnx.ModelProto) -> float:
    """The largest difference to float over the samples, as a share of the largest value."""
    worst = 0.0
    for feeds in samples(proto):
        want, got = run(proto, feeds), run(made, feeds)
        for name, value in want.items():
            assert value.shape == got[name].shape
            worst = max(worst, float(np.abs(value - got[name]).max() / np.abs(value).max()))
    return worst


def three_layers(kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """``x → MatMul → Add → Sigmoid → y``."""
    dtype = np.float16 if kind == TensorProto.FLOAT16 else np.float32
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "product"),
        node("Add", ["h", "b"], ["s"], "sum"),
        node("Sigmoid", ["s"], ["y"], "sigmoid"),
    ]
    consts = {"w": weights(16, 8).astype(dtype), "b": weights(8, seed=1).astype(dtype)}
    return model(nodes, [tensor("x", [4, 16], kind)], [tensor("y", [4, 8], kind)], consts)


# ---- float16


def test_overrides_of_the_inputs_and_outputs_of_a_float16_model_hold(tmp_path: Path) -> None:
    wide = [{"quant_type": QuantType.QUInt16}]
    options = {"TensorQuantOverrides": {"x": wide, "y": wide}}
    found = stored(static(three_layers(TensorProto.FLOAT16), tmp_path, extra_options=options))
    assert (found["x_zero_point"].dtype, found["y_zero_point"].dtype) == (np.uint16, np.uint16)
    assert found["h_zero_point"].dtype == np.uint8


def test_a_float16_model_keeps_the_names_of_scales_and_zero_points(tmp_path: Path) -> None:
    proto = three_layers(TensorProto.FLOAT16)
    half, single = static(proto, tmp_path), static(three_layers(), tmp_path)
    names = {name for name in stored(single) if name.endswith(("_scale", "_zero_point"))}
    assert names <= stored(half).keys()
    assert half.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert half.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
    assert far(proto, half) < 0.05


def test_the_calibration_cache_of_a_float16_model_names_its_own_tensors(tmp_path: Path) -> None:
    proto, cache = three_layers(TensorProto.FLOAT16), tmp_path / "cache.json"
    first = static(proto, tmp_path, calibration_cache_path=cache)
    assert set(q.load_tensors_data(cache).keys()) == {"x", "h", "s", "y"}
    q.quantize_static(
        proto, tmp_path / "q.onnx", activation_type=QuantType.QUInt8, calibration_cache_path=cache
    )
    assert onnx.load(tmp_path / "q.onnx") == first


# ---- conversions


def test_a_conversion_on_a_graph_output_is_written_and_given_out(tmp_path: Path) -> None:
    convert = {"quant_type": QuantType.QUInt16, "convert": {"quant_type": QuantType.QUInt8}}
    made = static(three_layers(), tmp_path, extra_options={"TensorQuantOverrides": {"y": [convert]}})
    found, makers = stored(made), by_output(made)
    assert found["y_zero_point"].dtype == np.uint16
    assert found["y_zero_point_convert"].dtype == np.uint8
    assert list(makers["y"].input)[1:] == ["y_scale_convert", "y_zero_point_convert"]
    assert far(three_layers(), made) < 0.05


def test_a_graph_output_that_one_of_two_consumers_reads_converted_stays_as_it_is(tmp_path: Path) -> None:
    proto = three_layers()
    proto.graph.node.extend([node("Relu", ["y"], ["r"], "relu"), node("Tanh", ["y"], ["t"], "tanh")])
    proto.graph.output.extend([tensor("r", [4, 8]), tensor("t", [4, 8])])
    convert = {
        "quant_type": QuantType.QUInt16,
        "convert": {"quant_type": QuantType.QUInt8, "recv_nodes": {"relu"}},
    }
    options = {"TensorQuantOverrides": {"y": [convert]}}
    ops = ["MatMul", "Add", "Sigmoid", "Relu", "Tanh"]
    made = static(proto, tmp_path, extra_options=options, op_types_to_quantize=ops)
    assert list(by_output(made)["y"].input)[1:] == ["y_scale", "y_zero_point"]
    assert far(proto, made) < 0.05


# ---- blocks of 8 bits


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
def test_eight_bit_weights_in_blocks_are_written_with_a_warning(kind: QuantType, tmp_path: Path) -> None:
    proto = three_layers()
    with pytest.warns(QuantizationWarning, match="ORT_ENABLE_BASIC"):
        made = static(proto, tmp_path, weight_type=kind, extra_options={"BlockSize": 8})
    assert stored(made)["w_scale"].shape == (2, 8)
    assert made.opset_import[0].version == 21
    dequantize = next(n for n in made.graph.node if n.input[0] == "w_quantized")
    assert {a.name: a.i for a in dequantize.attribute} == {"axis": 0, "block_size": 8}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    for feeds in samples(proto):
        (expected,) = run(proto, feeds).values()
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, atol=0.02)


# ---- the runner


def test_the_runner_raises_for_types_that_do_not_go_together(tmp_path: Path) -> None:
    onnx.save(three_layers(), tmp_path / "m.onnx")
    for number, feeds in enumerate(samples(three_layers(), 1)):
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        onnx.save_tensor(numpy_helper.from_array(feeds["x"], "x"), folder / "input_0.pb")
    command = ["-i", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx")]
    with pytest.raises(ValueError, match="QUInt8 weights"):
        static_quantize_runner.main([*command, "--activation_type", "qint8", "--weight_type", "quint8"])
    with pytest.raises(ValueError, match="'first'"):
        static_quantize_runner.main([*command, "--op_per_channel_axis", "MatMul", "first"])
    assert not (tmp_path / "q.onnx").exists()


# ---- reduced ranges


@pytest.mark.parametrize("seed", range(6))
def test_the_largest_weight_of_a_reduced_symmetric_unsigned_type_keeps_its_tie(
    seed: int, tmp_path: Path
) -> None:
    content = np.random.default_rng(seed).normal(size=(16, 8)).astype(np.float32)
    content *= np.sign(content.flat[np.abs(content).argmax()])  # the largest one is positive
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 8])],
        {"w": content},
    )
    options = {"WeightSymmetric": True}
    made = static(proto, tmp_path, weight_type=QuantType.QUInt8, reduce_range=True, extra_options=options)
    found = stored(made)
    assert found["w_zero_point"] == 64
    assert found["w_quantized"].max() in (127, 128)  # as the scale is rounded
    restored = (found["w_quantized"].astype(np.float64) - 64) * found["w_scale"]
    assert np.abs(restored - content).max() <= 0.501 * found["w_scale"]


# ---- biases


def conv(weight: str, given: str) -> onnx.ModelProto:
    """A Conv with a bias, whose input or weight or both the model itself has quantized."""
    nodes, consts = [], {"b": weights(4, seed=2)}
    x = "x"
    if "x" in given:
        nodes += [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "q"),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "dq"),
        ]
        consts |= {"xs": np.float32(0.05), "xz": np.uint8(128)}
        x = "xd"
    if "w" in given:
        nodes.append(node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], "dq_w", axis=0))
        count = 4 if weight == "per channel" else 1
        content = np.random.default_rng(0).integers(-100, 100, (4, 3, 3, 3)).astype(np.int8)
        scale, zero = np.full(count, 0.01, np.float32), np.zeros(count, np.int8)
        consts |= {
            "wq": content,
            "ws": scale if count > 1 else scale[0],
            "wz": zero if count > 1 else zero[0],
        }
    else:
        consts["w"] = weights(4, 3, 3, 3)
    nodes.append(node("Conv", [x, "w", "b"], ["y"], "conv"))
    return model(nodes, [tensor("x", [1, 3, 6, 6])], [tensor("y", [1, 4, 4, 4])], consts)


@pytest.mark.parametrize("weight", ["per tensor", "per channel"])
@pytest.mark.parametrize("given", ["x", "w", "xw"])
def test_a_bias_beside_a_weight_or_input_that_is_already_quantized_is_int32(
    weight: str, given: str, tmp_path: Path
) -> None:
    proto = conv(weight, given)
    made = static(proto, tmp_path, per_channel=weight == "per channel")
    found = stored(made)
    assert found["b_quantized"].dtype == np.int32
    x_scale = found["xs" if "x" in given else "x_scale"].astype(np.float64)
    w_scale = found["ws" if "w" in given else "w_scale"].astype(np.float64)
    np.testing.assert_allclose(found["b_quantized_scale"], np.atleast_1d(x_scale * w_scale), rtol=1e-6)
    restored = found["b_quantized"] * found["b_quantized_scale"].astype(np.float64)
    np.testing.assert_allclose(restored, stored(proto)["b"], atol=float(x_scale * w_scale.max()))
    assert far(proto, made) < 0.05


def test_the_scale_of_a_bias_per_tensor_is_a_list_of_one(tmp_path: Path) -> None:
    made = static(conv("per tensor", ""), tmp_path)
    assert stored(made)["b_quantized_scale"].shape == (1,)
    assert stored(made)["b_quantized_zero_point"].shape == ()


# ---- QOperator


def test_a_pad_whose_fill_is_computed_is_quantized(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv"),
        node("Mul", ["v", "v"], ["fill"], "square"),
        node("Pad", ["c", "p", "fill"], ["y"], "pad"),
    ]
    consts = {"w": weights(4, 3, 3, 3), "p": np.int64([0, 0, 1, 1, 0, 0, 1, 1])}
    inputs = [tensor("x", [1, 3, 6, 6]), tensor("v", [1])]
    proto = model(nodes, inputs, [tensor("y", [1, 4, 6, 6])], consts)
    ops = ["Conv", "Pad"]
    made = static(proto, tmp_path, quant_format=QuantFormat.QOperator, op_types_to_quantize=ops)
    pad = next(n for n in made.graph.node if n.op_type == "Pad")
    fill = by_output(made)[pad.input[2]]
    assert (fill.op_type, list(fill.input)) == ("QuantizeLinear", ["fill", "c_scale", "c_zero_point"])
    inside = np.s_[:, :, 1:-1, 1:-1]
    for feeds in samples(proto):
        (want,), (got,) = run(proto, feeds).values(), run(made, feeds).values()
        np.testing.assert_allclose(got[inside], want[inside], atol=0.05 * np.abs(want[inside]).max())
        step = stored(made)["c_scale"]
        low, high = -float(stored(made)["c_zero_point"]) * step, (255.0 - stored(made)["c_zero_point"]) * step
        np.testing.assert_allclose(got[0, 0, 0, 0], np.clip(want[0, 0, 0, 0], low, high), atol=step)


# ---- how models are written


def test_dynamic_weights_that_others_read_too_are_dequantized_along_axis_minus_one(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"], "product"), node("Add", ["h", "w"], ["y"], "sum")]
    proto = model(nodes, [tensor("x", [16, 16])], [tensor("y", [16, 16])], {"w": weights(16, 16)})
    made = dynamic(proto, tmp_path, per_channel=True)
    dequantize = next(n for n in made.graph.node if n.op_type == "DequantizeLinear")
    assert [(a.name, a.i) for a in dequantize.attribute] == [("axis", -1)]
    assert far(proto, made) < 0.05


def test_weights_and_biases_are_dequantized_first_in_the_list_of_nodes(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "one"),
        node("Relu", ["c"], ["r"], "relu"),
        node("Conv", ["r", "v", "d"], ["y"], "two"),
    ]
    consts = {
        "w": weights(4, 3, 3, 3),
        "b": weights(4, seed=1),
        "v": weights(2, 4, 3, 3, seed=2),
        "d": weights(2, seed=3),
    }
    proto = model(nodes, [tensor("x", [1, 3, 6, 6])], [tensor("y", [1, 2, 2, 2])], consts)
    made = static(proto, tmp_path, per_channel=True)
    first = [n.input[0] for n in made.graph.node[:4]]
    assert sorted(first) == ["b_quantized", "d_quantized", "v_quantized", "w_quantized"]
    assert far(proto, made) < 0.1


# ---- weights with leading axes of one

ALGORITHMS = {
    "default": DefaultWeightOnlyQuantConfig,
    "rtn": RTNWeightOnlyQuantConfig,
    "k_quant": KQuantWeightOnlyQuantConfig,
    "hqq": HQQWeightOnlyQuantConfig,
}


@pytest.mark.parametrize(
    "algorithm, style",
    [*itertools.product(("default", "rtn", "k_quant"), QuantFormat), ("hqq", QuantFormat.QOperator)],
)
@pytest.mark.parametrize("axes", [(1,), (1, 1)])
@pytest.mark.parametrize("x", [(2, 3, 64), (2, 64), None])
def test_weights_with_leading_axes_of_one_are_quantized_and_shapes_stay(
    algorithm: str, style: QuantFormat, axes: tuple[int, ...], x: tuple[int, ...] | None
) -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", x)],
        [tensor("y", None)],
        {"w": weights(*axes, 64, 32)},
        opset=21,
    )
    config = ALGORITHMS[algorithm](quant_format=style)
    quantizer = MatMulNBitsQuantizer(proto, block_size=32, algo_config=config)
    quantizer.process()
    made = quantizer.model.model
    ops = Counter(n.op_type for n in made.graph.node)
    assert ops["MatMulNBits" if style is QuantFormat.QOperator else "DequantizeLinear"] == 1
    for shape in (x,) if x is not None else ((2, 3, 64), (2, 64), (1, 1, 2, 64), (64,)):
        feeds = {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
        (want,), (got,) = run(proto, feeds).values(), run(made, feeds).values()
        assert want.shape == got.shape
        assert np.abs(want - got).max() < 0.25 * np.abs(want).max()


def test_constant_nodes_stay_nodes_so_that_all_initializers_can_be_stored_beside_the_model(
    tmp_path: Path,
) -> None:
    axes = numpy_helper.from_array(np.int64([1]), "axes")
    nodes = [
        onnx.helper.make_node("Constant", [], ["axes"], "constant", value=axes),
        node("MatMul", ["x", "w"], ["h"], "product"),
        node("ReduceSum", ["h", "axes"], ["y"], "sum", keepdims=0),
    ]
    proto = model(nodes, [tensor("x", [2, 64])], [tensor("y", [2])], {"w": weights(64, 32)}, opset=21)
    quantizer = MatMulNBitsQuantizer(proto, block_size=32)
    quantizer.process()
    made = quantizer.model.model
    assert Counter(n.op_type for n in made.graph.node) == {"Constant": 1, "MatMulNBits": 1, "ReduceSum": 1}
    options = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(made, tmp_path / "q.onnx", **options, convert_attribute=False)
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx")
    feeds = {"x": np.ones((2, 64), np.float32)}
    (want,) = run(proto, feeds).values()
    np.testing.assert_allclose(session.run(None, feeds)[0], want, atol=0.2 * np.abs(want).max() + 0.5)
