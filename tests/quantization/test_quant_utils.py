"""The helper functions, called as a user of stock calls them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor
from onnx import TensorProto, helper, numpy_helper

from octavo.calibration import tables
from octavo.core.stats import Range
from octavo.model.runtime.session import Session
from octavo.quantization import quant_utils as qu
from octavo.quantization.calibrate import CalibrationMethod, TensorData, TensorsData
from octavo.quantization.quant_utils import QuantFormat, QuantizationMode, QuantizedValueType, QuantType

F32 = np.float32
WEIGHT = (np.arange(-8, 8, dtype=F32) / 3).reshape(8, 2)


def test_enums_have_stock_values_print_as_bare_names_and_are_found_by_them() -> None:
    assert [(k.name, k.value) for k in QuantType] == [
        ("QInt8", 0),
        ("QUInt8", 1),
        ("QFLOAT8E4M3FN", 2),
        ("QInt16", 3),
        ("QUInt16", 4),
        ("QInt4", 5),
        ("QUInt4", 6),
    ]
    assert (QuantFormat.QOperator.value, QuantFormat.QDQ.value) == (0, 1)
    assert (QuantizationMode.IntegerOps.value, QuantizationMode.QLinearOps.value) == (0, 1)
    assert (QuantizedValueType.Input.value, QuantizedValueType.Initializer.value) == (0, 1)
    for kind in (QuantType, QuantFormat, QuantizationMode):
        for member in kind:
            assert kind.from_string(str(member)) is member
    with pytest.raises(ValueError, match="'int8' is not a QuantType; choose one of: QInt8"):
        QuantType.from_string("int8")


@pytest.mark.parametrize("kind", list(QuantType))
def test_tensor_type_is_what_onnx_stores(kind: QuantType) -> None:
    assert TensorProto.DataType.Name(kind.tensor_type) == kind.name[1:].upper()


@pytest.mark.parametrize(
    ("kind", "full", "symmetric", "reduced"),
    [
        (TensorProto.INT8, (-128, 127), (-127, 127), (-64, 64)),
        (TensorProto.UINT8, (0, 255), (0, 255), (0, 127)),
        (TensorProto.INT16, (-32768, 32767), (-32767, 32767), (-16384, 16384)),
        (TensorProto.UINT16, (0, 65535), (0, 65535), (0, 32767)),
        (TensorProto.INT4, (-8, 7), (-8, 7), (-4, 3)),
        (TensorProto.UINT4, (0, 15), (0, 15), (0, 7)),
    ],
)
def test_limits_of_each_type(
    kind: int, full: tuple[int, int], symmetric: tuple[int, int], reduced: tuple[int, int]
) -> None:
    def limits(**how: bool) -> tuple[int, int]:
        low, high = qu.get_qmin_qmax_for_qType(kind, **how)
        assert low.dtype == high.dtype == qu.ONNX_TYPE_TO_NP_TYPE[kind]
        return int(low), int(high)

    assert (limits(), limits(symmetric=True), limits(reduce_range=True)) == (full, symmetric, reduced)
    assert qu.get_qrange_for_qType(kind) == full[1] - full[0]


def test_limits_of_a_float_type_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="no integer limits"):
        qu.get_qmin_qmax_for_qType(TensorProto.FLOAT8E4M3FN)
    with pytest.raises(ValueError, match="FLOAT is not a quantized type"):
        qu.get_qmin_qmax_for_qType(TensorProto.FLOAT)


def test_scale_and_zero_point_of_a_range() -> None:
    zero, scale = qu.compute_scale_zp(F32(-1), F32(2), *qu.get_qmin_qmax_for_qType(TensorProto.UINT8))
    assert (zero.dtype, int(zero)) == (np.uint8, 85)
    assert scale == F32(3 / 255)
    zero, scale = qu.compute_scale_zp(-1.0, 2.0, 0, 255)
    assert (int(zero), scale.dtype) == (85, F32)


def test_scale_of_half_precision_and_of_arbitrary_limits() -> None:
    zero, scale = qu.compute_scale_zp(np.float16(-3), np.float16(1), np.int8(-10), np.int8(10))
    assert (scale.dtype, float(scale)) == (np.float16, float(np.float16(0.2)))
    assert int(zero) == 5


def test_symmetric_and_minimum_range() -> None:
    limits = qu.get_qmin_qmax_for_qType(TensorProto.INT8, symmetric=True)
    zero, scale = qu.compute_scale_zp(F32(-1), F32(2), *limits, symmetric=True)
    assert (int(zero), scale) == (0, F32(4 / 254))
    _, scale = qu.compute_scale_zp(F32(0), F32(1e-9), np.uint8(0), np.uint8(255), min_real_range=1e-4)
    assert scale == F32(1e-4 / 255)


def test_arrays_of_ranges_give_arrays_of_scales() -> None:
    low, high = np.array([-3, -1], F32), np.array([1, 2], F32)
    zero, scale = qu.compute_scale_zp(low, high, np.uint8(0), np.uint8(255))
    np.testing.assert_array_equal(scale, (np.array([4, 3]) / 255).astype(F32))
    assert zero.tolist() == [191, 85]


def test_snapped_zero_point_is_at_the_end_or_in_the_middle() -> None:
    zero, scale = qu.snap_zero_point_to_uint8(F32(-3), F32(1))
    assert (int(zero), float(scale)) == (128, 3 / 128)
    zero, scale = qu.snap_zero_point_to_uint8(F32(0), F32(1))
    assert (int(zero), scale) == (0, F32(1 / 255))


def test_float8_scale_is_the_ratio_of_standard_deviations() -> None:
    zero, scale = qu.compute_scale_zp_float8(TensorProto.FLOAT8E4M3FN, F32(2))
    every = np.arange(256, dtype=np.uint8).view(qu.ONNX_TYPE_TO_NP_TYPE[TensorProto.FLOAT8E4M3FN])
    values = every.astype(np.float64)
    assert scale == F32(2 / np.std(values[np.isfinite(values)]))
    assert float(zero) == 0


def _steps(x: np.ndarray, scale: np.ndarray, zero: np.ndarray, low: int, high: int) -> np.ndarray:
    """Quantization in float64, independent of the code under test."""
    return np.clip(np.rint(x.astype(np.float64) / scale) + zero, low, high)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    "kind", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4]
)
def test_quantized_data_is_the_rounded_quotient(kind: int, symmetric: bool) -> None:
    data = np.random.default_rng(1).standard_normal((7, 5)).astype(F32)
    zero, scale, quantized = qu.quantize_data(data, kind, symmetric)
    assert (zero.tolist(), scale) == tuple(
        v.tolist() if i == 0 else v for i, v in enumerate(qu.compute_data_quant_params(data, kind, symmetric))
    )
    low, high = (int(v) for v in qu.get_qmin_qmax_for_qType(kind, symmetric=symmetric))
    wanted = _steps(data, np.float64(scale), zero.astype(np.int64), low, high)
    off = np.abs(quantized.astype(np.float64) - wanted)
    assert off.max() <= 1, "a quotient at a tie may round to either side in float32"
    assert np.count_nonzero(off) <= 1
    assert quantized.dtype == qu.ONNX_TYPE_TO_NP_TYPE[kind]


def test_overridden_range_reduced_range_and_empty_data() -> None:
    zero, scale = qu.compute_data_quant_params(WEIGHT, TensorProto.UINT8, False, True, 1e-4, -1.0, 4.0)
    assert (int(zero), scale) == (25, F32(5 / 127))
    zero, scale, _ = qu.quantize_data(np.zeros(0, F32), TensorProto.UINT8, False)
    assert (int(zero), float(scale)) == (0, 1)


def test_array_is_quantized_within_given_limits() -> None:
    found = qu.quantize_nparray(TensorProto.INT8, WEIGHT, F32(0.005), np.int8(0), -10, 20)
    assert (found.min(), found.max()) == (-10, 20)


def _dequantized(weight: TensorProto, scale: np.ndarray, zero: np.ndarray, **attributes: int) -> np.ndarray:
    """What ONNX Runtime makes of a quantized weight."""
    proto = model(
        [node("DequantizeLinear", [weight.name, "s", "z"], ["y"], **attributes)],
        [],
        [tensor("y", None)],
        opset=21,
        ir_version=10,
    )
    proto.graph.initializer.extend([weight, numpy_helper.from_array(scale, "s")])
    zeros = numpy_helper.from_array(np.asarray(zero).astype(qu.ONNX_TYPE_TO_NP_TYPE[weight.data_type]), "z")
    proto.graph.initializer.append(zeros)
    return Session.open(proto.SerializeToString()).run({})["y"]


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "block", "short block"])
def test_quantized_initializer_means_the_weight_to_the_runtime(kind: int, granularity: str) -> None:
    data = np.random.default_rng(2).standard_normal((8, 6)).astype(F32)
    weight = numpy_helper.from_array(data, "w")
    axis: int | None = None
    attributes: dict[str, int] = {}
    if granularity == "tensor":
        zero, scale = qu.compute_data_quant_params(data, kind, False)
    elif granularity == "channel":
        axis = attributes["axis"] = 1
        limits = qu.get_qmin_qmax_for_qType(kind)
        zero, scale = qu.compute_scale_zp(data.min(0), data.max(0), *limits)
    else:
        size = 4 if granularity == "block" else 3
        axis, attributes = 0, {"axis": 0, "block_size": size}
        zero, scale = qu.compute_scale_zp_blocked(data, kind, 0, size, False)
        assert scale.shape == (-(-8 // size), 6)
    stored = qu.quantize_onnx_initializer(
        weight, kind, zero, scale, axis, None, attributes.get("block_size", 0)
    )
    assert (stored.name, list(stored.dims), stored.data_type) == ("w_quantized", [8, 6], kind)
    back = _dequantized(stored, np.asarray(scale), zero, **attributes)
    assert np.max(np.abs(back - data)) <= 0.51 * float(np.max(scale))


def test_quantized_initializer_takes_a_name_and_zero_points_of_a_wider_type() -> None:
    weight = numpy_helper.from_array(WEIGHT, "w")
    stored = qu.quantize_onnx_initializer(
        weight, TensorProto.INT4, np.int8(0), F32(0.5), quant_weight_name="other"
    )
    assert stored.name == "other"
    assert stored.raw_data == b"\xbb\xdc\xed\xff\x10!3T"


def test_blocks_of_a_rank_four_weight_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="per channel"):
        qu.compute_scale_zp_blocked(WEIGHT.reshape(2, 2, 2, 2), TensorProto.INT8, 0, 2, True)


def test_four_bit_packing_puts_the_first_number_low() -> None:
    assert qu.pack_bytes_to_4bit(bytes([1, 2, 255])) == bytearray(b"\x21\x0f")
    assert qu.pack_bytes_to_4bit(b"") == bytearray()


def test_axes_are_counted_from_the_front() -> None:
    assert [qu.normalize_axis(a, 4) for a in (-1, 0, 4, -5)] == [
        (True, 3),
        (True, 0),
        (False, 4),
        (False, -1),
    ]


def test_names_follow_the_contract() -> None:
    assert [
        f("T")
        for f in (
            qu.add_quant_suffix,
            qu.add_quant_input_suffix,
            qu.add_quant_output_suffix,
            qu.add_dequant_suffix,
            qu.add_dequant_input_suffix,
            qu.add_dequant_output_suffix,
        )
    ] == [
        "T_QuantizeLinear",
        "T_QuantizeLinear_Input",
        "T_QuantizeLinear_Output",
        "T_DequantizeLinear",
        "T_DequantizeLinear_Input",
        "T_DequantizeLinear_Output",
    ]
    assert qu.generate_identified_filename(Path("/a/b.onnx"), "-x") == Path("/a/b-x.onnx")


def test_small_searches_and_attributes() -> None:
    made = helper.make_node("X", ["a"], ["b"], name="n", alpha=1.5)
    assert qu.attribute_to_kwarg(made.attribute[0]) == {"alpha": 1.5}
    assert qu.find_by_name("n", [made]) is made
    assert qu.find_by_name("m", [made]) is None
    assert (qu.get_elem_index("b", ["a", "b"]), qu.get_elem_index("c", ["a"])) == (1, -1)
    product = qu.get_mul_node(["a", "b"], "c", "m")
    assert (product.op_type, list(product.input), list(product.output), product.name) == (
        "Mul",
        ["a", "b"],
        ["c"],
        "m",
    )


def test_records_keep_their_fields() -> None:
    value = qu.QuantizedValue("a", "b", "c", "d", QuantizedValueType.Input, 1, "Conv", 3, 1)
    assert (value.original_name, value.q_name, value.scale_name, value.zp_name) == ("a", "b", "c", "d")
    assert (value.value_type, value.axis, value.node_type) == (QuantizedValueType.Input, 1, "Conv")
    initializer = qu.QuantizedInitializer("n", numpy_helper.from_array(WEIGHT), [1], [2], [3], [4])
    assert (initializer.rmins, initializer.data, initializer.axis) == ([1], [], None)
    assert qu.BiasToQuantize("b", "x", "w").weight_name == "w"


def test_smoothed_distribution_has_no_zeros_and_the_same_sum() -> None:
    smooth = qu.smooth_distribution(np.array([0, 1, 2, 0, 3.0]))
    assert smooth is not None
    assert (smooth > 0).all()
    assert smooth.sum() == pytest.approx(6)
    assert qu.smooth_distribution(np.zeros(3)) is None


def test_float_tensor_becomes_an_array_and_others_are_refused() -> None:
    half = numpy_helper.from_array(WEIGHT.astype(np.float16), "h")
    assert qu.tensor_proto_to_array(half).dtype == np.float16
    with pytest.raises(ValueError, match="'i' holds INT64"):
        qu.tensor_proto_to_array(numpy_helper.from_array(np.array([1]), "i"))


def test_model_is_loaded_with_shapes_and_no_file_appears_beside_it(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "m.onnx")
    (tmp_path / "m.onnx").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        found = qu.load_model_with_shape_infer(tmp_path / "m.onnx")
    finally:
        tmp_path.chmod(0o755)
    assert {"conv", "bn", "flat"} <= {value.name for value in found.graph.value_info}
    assert qu.model_has_infer_metadata(found)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert [t.name for t in found.graph.initializer] == [t.name for t in conv_net().graph.initializer]


def test_reloading_leaves_the_callers_model_alone() -> None:
    proto = conv_net()
    before = proto.SerializeToString()
    assert qu.save_and_reload_model_with_shape_infer(proto).graph.value_info
    assert proto.SerializeToString() == before


def test_metadata_marks_and_is_seen() -> None:
    proto = conv_net()
    proto.metadata_props.add(key="mine", value="kept")
    assert not qu.model_has_pre_process_metadata(proto)
    qu.add_pre_process_metadata(proto)
    qu.add_pre_process_metadata(proto)
    assert qu.model_has_pre_process_metadata(proto)
    assert not qu.model_has_infer_metadata(proto)
    assert {e.key: e.value for e in proto.metadata_props}["mine"] == "kept"
    assert len(proto.metadata_props) == 2


def test_external_data_is_noticed(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "a.onnx")
    onnx.save(conv_net(), tmp_path / "b.onnx", save_as_external_data=True, size_threshold=0)
    assert not qu.model_has_external_data(tmp_path / "a.onnx")
    assert qu.model_has_external_data(tmp_path / "b.onnx")


def test_optimized_model_has_the_batch_normalization_folded(tmp_path: Path) -> None:
    onnx.save(conv_net(), tmp_path / "m.onnx")
    qu.optimize_model(tmp_path / "m.onnx", tmp_path / "o.onnx")
    assert "BatchNormalization" not in {n.op_type for n in onnx.load(tmp_path / "o.onnx").graph.node}


@pytest.mark.parametrize(
    ("opset", "arguments", "wanted"),
    [
        (9, {"weight_type": QuantType.QInt8}, 11),
        (12, {"weight_type": QuantType.QInt8}, 12),
        (12, {"weight_type": QuantType.QInt16}, 21),
        (12, {"weight_type": QuantType.QFLOAT8E4M3FN}, 19),
        (12, {"weight_type": QuantType.QInt8, "activation_type": QuantType.QUInt16}, 21),
        (12, {"weight_type": QuantType.QInt8, "block_size": 4}, 21),
        (
            12,
            {
                "weight_type": QuantType.QInt8,
                "tensor_quant_overrides": {"a": [{"convert": {"quant_type": QuantType.QInt16}}]},
            },
            21,
        ),
    ],
)
def test_opset_is_raised_to_what_a_type_needs(
    opset: int, arguments: dict[str, object], wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    proto = conv_net(opset=opset)
    with caplog.at_level(logging.WARNING, "octavo.quantization"):
        found = qu.update_opset_version(proto, **arguments)  # type: ignore[arg-type]
    assert qu.get_opset_version(found) == wanted
    assert qu.get_opset_version(proto) == opset
    assert bool(caplog.records) == (wanted != opset)
    feeds = {"x": np.ones((1, 3, 8, 8), F32)}
    before = Session.open(proto.SerializeToString()).run(feeds)["y"]
    after = Session.open(found.SerializeToString()).run(feeds)["y"]
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_calibration_table_holds_the_largest_magnitude(tmp_path: Path) -> None:
    data = TensorsData(
        CalibrationMethod.MinMax,
        {
            "a": (F32(-5), F32(1)),
            "c": TensorData(lowest=np.array([-1, -2], F32), highest=np.array([1, 3], F32)),
        },
    )
    qu.write_calibration_table(data, str(tmp_path))
    assert (tmp_path / "calibration.cache").read_text() == "a 5.0\nc 3.0\n"
    assert tables.load(tmp_path / "calibration.flatbuffers") == {"a": Range(-5, 5), "c": Range(-3, 3)}
    assert tables.load(tmp_path / "calibration.json") == {"a": Range(-5, 1), "c": Range(-2, 3)}


def test_calibration_table_of_a_plain_dictionary(tmp_path: Path) -> None:
    qu.write_calibration_table({"a": (-1.0, 2.0)}, tmp_path)
    assert tables.load(tmp_path / "calibration.json") == {"a": Range(-1, 2)}


@pytest.mark.peer
def test_numbers_agree_with_stock() -> None:
    stock = pytest.importorskip("onnxruntime.quantization.quant_utils", exc_type=ImportError)
    rng = np.random.default_rng(3)
    for kind in (
        TensorProto.INT8,
        TensorProto.UINT8,
        TensorProto.INT16,
        TensorProto.UINT16,
        TensorProto.INT4,
    ):
        for symmetric in (False, True):
            data = rng.standard_normal((16, 8)).astype(F32)
            for ours, theirs in zip(
                qu.quantize_data(data, kind, symmetric),
                stock.quantize_data(data, kind, symmetric),
                strict=True,
            ):
                # 1.29 rounds a scale differently in its last place
                np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), rtol=2e-7)
            ours_blocked = qu.compute_scale_zp_blocked(data, kind, 0, 4, symmetric)
            for ours, theirs in zip(
                ours_blocked, stock.compute_scale_zp_blocked(data, kind, 0, 4, symmetric), strict=True
            ):
                np.testing.assert_allclose(ours.astype(F32), theirs.astype(F32), rtol=2e-7)
            weight = numpy_helper.from_array(data, "w")
            zero, scale = ours_blocked
            assert (
                qu.quantize_onnx_initializer(weight, kind, zero, scale, 0, None, 4).raw_data
                == stock.quantize_onnx_initializer(weight, kind, zero, scale, 0, None, 4).raw_data
            )
    raw = rng.integers(0, 16, 1001).astype(np.uint8).tobytes()
    assert qu.pack_bytes_to_4bit(raw) == stock.pack_bytes_to_4bit(raw)
