"""Where a user who only changes the import could trip: each test is named after what is expected."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto, numpy_helper
from quantizing import run, weights

import octavo.quantization as q
from octavo.quantization import QuantType, calibrate
from octavo.quantization._errors import QuantizationWarning
from octavo.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model
from octavo.quantization.onnx_quantizer import ONNXQuantizer
from octavo.quantization.qdq_quantizer import QDQQuantizer

from .peer import Reader, samples


def two_layers() -> onnx.ModelProto:
    """``x → MatMul → Add → y``."""
    return model(
        [node("MatMul", ["x", "w"], ["h"], "product"), node("Add", ["h", "b"], ["y"], "sum")],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 8])],
        {"w": weights(16, 8), "b": weights(8, seed=1)},
    )


def op_types(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def stored(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def static(proto: onnx.ModelProto, folder: Path, **settings: Any) -> onnx.ModelProto:
    """The model as ``quantize_static`` writes it; 8-bit activations without a sign unless told otherwise."""
    settings = {"activation_type": QuantType.QUInt8, **settings}
    q.quantize_static(proto, folder / "q.onnx", Reader(samples(proto)), **settings)
    return onnx.load(folder / "q.onnx")


def far(proto: onnx.ModelProto, made: onnx.ModelProto) -> float:
    """The largest difference to float over the samples, as a share of the largest value."""
    worst = 0.0
    for feeds in samples(proto):
        want, got = run(proto, feeds), run(made, feeds)
        worst = max(worst, *(np.abs(want[n] - got[n]).max() / np.abs(want[n]).max() for n in want))
    return worst


# ---- element types in place of QuantType


@pytest.mark.parametrize("style", list(q.QuantFormat))
def test_element_types_are_as_good_as_quant_types_in_static_quantization(
    style: q.QuantFormat, tmp_path: Path
) -> None:
    by_element = static(
        two_layers(),
        tmp_path,
        quant_format=style,
        activation_type=TensorProto.UINT8,
        weight_type=TensorProto.INT8,
    )
    assert by_element == static(two_layers(), tmp_path, quant_format=style)
    assert far(two_layers(), by_element) < 0.05


def test_element_types_are_as_good_as_quant_types_in_dynamic_quantization(tmp_path: Path) -> None:
    made = {}
    for kind in (TensorProto.UINT8, QuantType.QUInt8):
        q.quantize_dynamic(two_layers(), tmp_path / "q.onnx", weight_type=kind)  # type: ignore[arg-type]
        made[kind] = onnx.load(tmp_path / "q.onnx")
    assert made[TensorProto.UINT8] == made[QuantType.QUInt8]
    assert stored(made[TensorProto.UINT8])["w_quantized"].dtype == np.uint8


@pytest.mark.parametrize("config", [q.get_qdq_config, get_qnn_qdq_config])
def test_element_types_are_as_good_as_quant_types_in_configurations(
    config: Callable[..., q.StaticQuantConfig], tmp_path: Path
) -> None:
    proto = two_layers()
    types = {"activation_type": TensorProto.UINT16, "weight_type": TensorProto.UINT8}
    q.quantize(proto, tmp_path / "q.onnx", config(proto, Reader(samples(proto)), **types))
    found = stored(onnx.load(tmp_path / "q.onnx"))
    assert (found["x_zero_point"].dtype, found["w_quantized"].dtype) == (np.uint16, np.uint8)
    plain = q.StaticQuantConfig(Reader(samples(proto)), activation_type=2, weight_type=3)  # type: ignore[arg-type]
    q.quantize(proto, tmp_path / "q.onnx", plain)
    assert stored(onnx.load(tmp_path / "q.onnx"))["w_quantized"].dtype == np.int8


def test_element_types_are_as_good_as_quant_types_in_overrides(tmp_path: Path) -> None:
    overrides = {"TensorQuantOverrides": {"x": [{"quant_type": TensorProto.UINT16}]}}
    assert stored(static(two_layers(), tmp_path, extra_options=overrides))["x_zero_point"].dtype == np.uint16


def test_true_and_false_say_to_the_classes_whether_eight_bits_have_a_sign() -> None:
    mode = q.QuantizationMode.IntegerOps
    for weight, dtype in ((True, np.int8), (False, np.uint8)):
        quantizer = ONNXQuantizer(
            two_layers(), False, False, mode, False, weight, False, None, None, None, ["MatMul"]
        )
        assert stored(quantizer.quantize_model())["w_quantized"].dtype == dtype


def test_members_of_another_packages_enums_count_by_their_names(tmp_path: Path) -> None:
    stock = pytest.importorskip("onnxruntime.quantization")
    made = static(
        two_layers(),
        tmp_path,
        activation_type=stock.QuantType.QUInt8,
        quant_format=stock.QuantFormat.QOperator,
        calibrate_method=stock.CalibrationMethod.MinMax,
    )
    assert "QLinearMatMul" in op_types(made)


def test_types_that_nothing_is_quantized_to_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="FLOAT is not a quantized type"):
        static(two_layers(), tmp_path, activation_type=TensorProto.FLOAT)


# ---- unknown options


def unknown(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in caught if "has no key" in str(w.message)]


def test_an_unknown_option_is_ignored_with_one_warning_that_names_the_closest(tmp_path: Path) -> None:
    options = {"ForceSymmetric": True, "blocksize": 0}
    proto = two_layers()
    calls: dict[str, Callable[[], object]] = {
        "static": lambda: static(proto, tmp_path, extra_options=options),
        "dynamic": lambda: q.quantize_dynamic(proto, tmp_path / "q.onnx", extra_options=options),
        "QDQQuantizer": lambda: QDQQuantizer(
            proto, False, False, 3, 2, dict.fromkeys("xhy", (-4.0, 4.0)), [], [], ["MatMul"], options
        ).quantize_model(),
        "ONNXQuantizer": lambda: ONNXQuantizer(
            proto, False, False, q.QuantizationMode.IntegerOps, False, 3, 2, None, [], [], ["MatMul"], options
        ).quantize_model(),
        "calibrator": lambda: q.create_calibrator(
            "m.onnx", augmented_model_path=tmp_path / "a.onnx", extra_options=options
        ),
    }
    os.chdir(tmp_path)
    onnx.save(proto, "m.onnx")
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        said = unknown(caught)
        assert len(said) == 2, (name, said)
        assert "'ForceSymmetric'" in said[0]
        assert caught[0].filename == __file__, name
        if name != "calibrator":
            assert "did you mean 'BlockSize'" in said[1]


# ---- configurations


@pytest.mark.parametrize("config", [q.get_qdq_config, get_qnn_qdq_config])
def test_op_types_that_the_model_lacks_quantize_nothing(
    config: Callable[..., q.StaticQuantConfig], tmp_path: Path
) -> None:
    proto = two_layers()
    made = config(proto, Reader(samples(proto)), op_types_to_quantize=["Mul"])
    assert made.op_types_to_quantize == ["Mul"]
    with pytest.warns(QuantizationWarning, match="Nothing in the model was quantized"):
        q.quantize(proto, tmp_path / "q.onnx", made)
    assert op_types(onnx.load(tmp_path / "q.onnx")) == ["MatMul", "Add"]


def test_four_bits_below_opset_21_put_contrib_operators_into_the_configuration() -> None:
    for opset, activation, weight, expected in (
        (17, "QUInt8", "QInt4", True),
        (21, "QUInt8", "QInt4", None),
        (17, "QUInt16", "QInt4", None),  # 16 bits raise the opset
        (17, "QUInt8", "QInt8", None),
    ):
        proto = two_layers()
        proto.opset_import[0].version = opset
        types = {"activation_type": QuantType[activation], "weight_type": QuantType[weight]}
        options = q.get_qdq_config(proto, None, **types).extra_options  # type: ignore[arg-type]
        assert options.get("UseQDQContribOps") is expected, (opset, activation, weight)


def wide_model() -> onnx.ModelProto:
    """``MatMul → LayerNormalization → Sigmoid → Tanh → MatMul`` with the weight on the left."""
    return model(
        [
            node("MatMul", ["x", "w"], ["m"], "mm"),
            node("LayerNormalization", ["m", "g", "c"], ["l"], "ln"),
            node("Sigmoid", ["l"], ["s"], "sigmoid"),
            node("Tanh", ["s"], ["t"], "tanh"),
            node("MatMul", ["v", "t"], ["y"], "mm2"),
        ],
        [tensor("x", [4, 4])],
        [tensor("y", [4, 4])],
        {"w": weights(4, 4), "v": weights(4, 4, seed=1), "g": np.ones(4, np.float32), "c": weights(4)},
    )


def test_weights_beside_16_bit_activations_get_an_override_in_the_qnn_configuration() -> None:
    made = get_qnn_qdq_config(
        wide_model(), None, activation_type=QuantType.QUInt16, weight_type=QuantType.QUInt8
    )
    wanted = [{"quant_type": QuantType.QUInt8, "symmetric": False}]
    found = made.extra_options["TensorQuantOverrides"]
    assert (found["w"], found["v"], found["g"]) == (wanted, wanted, wanted)


@pytest.mark.peer
def test_configurations_are_those_of_stock() -> None:
    stock = pytest.importorskip("onnxruntime.quantization")
    from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config as stock_qnn

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in sorted(value.items())}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, set):
            return sorted(map(str, value))
        return value.tolist() if hasattr(value, "tolist") else str(value)

    def settings(package: Any, make: Any, proto: onnx.ModelProto, case: tuple[Any, ...]) -> Any:
        activation, weight, per_channel, own, ops = case
        kinds = package.QuantType
        overrides = {
            tensor: [{k: kinds[v] if k == "quant_type" else v for k, v in own[tensor].items()}]
            for tensor in own
        }
        key = "init_overrides" if "qnn" in make.__name__ else "tensor_quant_overrides"
        types = {"activation_type": kinds[activation], "weight_type": kinds[weight]}
        more = {key: overrides or None, "op_types_to_quantize": ops, "per_channel": per_channel}
        found = plain(
            {k: v for k, v in vars(make(proto, None, **types, **more)).items() if "reader" not in k}
        )
        found["op_types_to_quantize"].sort()
        return found

    def cases() -> Iterator[tuple[Any, ...]]:
        own = (
            {},
            {"m": {"quant_type": "QUInt16"}},
            {"w": {"quant_type": "QUInt8"}},
            {"w": {"symmetric": True}},
        )
        types = itertools.product(("QUInt8", "QUInt16", "QInt16"), ("QInt8", "QUInt8", "QInt16", "QInt4"))
        for (activation, weight), per_channel, one, ops in itertools.product(
            types, (False, True), own, (None, ["Mul"], ["MatMul"])
        ):
            yield activation, weight, per_channel, one, ops

    for opset in (17, 21):
        proto = wide_model()
        proto.opset_import[0].version = opset
        for case in cases():
            pairs = ((q.get_qdq_config, stock.get_qdq_config), (get_qnn_qdq_config, stock_qnn))
            for own, peer in pairs:
                assert settings(q, own, proto, case) == settings(stock, peer, proto, case), (opset, case)


def test_the_qnn_configuration_reads_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    onnx.save(wide_model(), folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    os.truncate(folder / "w.bin", 0)
    monkeypatch.chdir(tmp_path)
    for path in (folder / "m.onnx", "elsewhere/m.onnx"):
        overrides = {"m": [{"quant_type": QuantType.QUInt16}]}
        made = get_qnn_qdq_config(path, None, init_overrides=overrides)
        assert made.use_external_data_format
        assert made.extra_options["TensorQuantOverrides"]["l"][0]["quant_type"] is QuantType.QUInt16


# ---- the class behind dynamic quantization


def test_a_gemm_is_quantized_dynamically_through_the_class_too() -> None:
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["y"], "gemm", transB=1)],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 8])],
        {"w": weights(8, 16), "b": weights(8, seed=1)},
    )
    mode = q.QuantizationMode.IntegerOps
    made = ONNXQuantizer(
        proto, False, False, mode, False, 3, 2, None, [], [], ["MatMul"], {}
    ).quantize_model()
    assert "MatMulInteger" in op_types(made)
    assert far(proto, made) < 0.05


# ---- calibration caches


def test_the_folder_of_a_calibration_cache_is_made(tmp_path: Path) -> None:
    cache = tmp_path / "a" / "b" / "cache.json"
    first = static(two_layers(), tmp_path, calibration_cache_path=cache)
    assert set(q.load_tensors_data(cache).keys()) == {"x", "h", "y"}
    q.quantize_static(
        two_layers(), tmp_path / "q.onnx", activation_type=QuantType.QUInt8, calibration_cache_path=cache
    )
    assert onnx.load(tmp_path / "q.onnx") == first


def test_a_cache_of_another_smoothing_is_warned_of_and_written_anew(tmp_path: Path) -> None:
    proto, cache = two_layers(), tmp_path / "cache.json"
    static(proto, tmp_path, calibration_cache_path=cache)
    options = {"extra_options": {"SmoothQuant": True}, "calibration_cache_path": cache}
    with pytest.warns(QuantizationWarning, match="smooth_quant"):
        made = static(proto, tmp_path, **options)
    assert q.load_tensors_data(cache).smooth_quant is True  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.simplefilter("error", QuantizationWarning)
        assert static(proto, tmp_path, **options) == made
    assert far(proto, made) < 0.05


# ---- execution providers


def test_an_execution_provider_that_the_build_lacks_is_warned_of_and_the_cpu_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = two_layers()
    monkeypatch.chdir(tmp_path)
    onnx.save(proto, "m.onnx")
    calibrator = q.create_calibrator("m.onnx")
    with pytest.warns(QuantizationWarning, match=r"NoSuchExecutionProvider.*CPUExecutionProvider") as caught:
        calibrator.set_execution_providers(["NoSuchExecutionProvider"])
    assert caught[0].filename == __file__
    calibrator.collect_data(Reader(samples(proto)))
    on_cpu = q.create_calibrator("m.onnx")
    on_cpu.collect_data(Reader(samples(proto)))
    for name, data in on_cpu.compute_data().items():
        assert calibrator.compute_data()[name].range_value == data.range_value
    with pytest.warns(QuantizationWarning, match="NoSuchExecutionProvider"):
        static(proto, tmp_path, calibration_providers=["NoSuchExecutionProvider", "CPUExecutionProvider"])


# ---- words that are matched


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"nobody": [{"symmetric": True}]}, "is not present in the model"),
        ({"x": [{"scale": 1.0}]}, "Must provide both 'scale' and 'zero_point'"),
        ({"x": [{"scale": 1.0, "zero_point": 0, "rmax": 1.0}]}, r"option\(s\) \[rmax\] are invalid with"),
    ],
)
def test_wrong_overrides_raise_with_the_words_that_people_match(
    overrides: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        static(two_layers(), tmp_path, extra_options={"TensorQuantOverrides": overrides})
    with pytest.raises(ValueError, match=words):
        get_qnn_qdq_config(two_layers(), None, init_overrides=overrides)


@pytest.mark.parametrize("end", ["inputs", "outputs"])
def test_too_low_a_rank_for_channels_last_is_said_with_the_words_that_people_match(
    end: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="to be of rank >= 3"):
        qnn_preprocess_model(
            two_layers(),
            tmp_path / "o.onnx",
            **{f"{end}_to_make_channel_last": ["x" if end == "inputs" else "y"]},
        )


# ---- arithmetic


@pytest.mark.parametrize(
    "p, qk, expected",
    [([-1, 2], [1, 1], np.inf), ([1, 1], [-1, 2], np.inf), ([0, 1], [-1, 2], np.inf), ([0, 1], [0, 1], 0)],
)
def test_entropy_of_vectors_with_negative_entries_is_infinite(
    p: list[float], qk: list[float], expected: float
) -> None:
    assert calibrate.entropy(np.float32(p), np.float32(qk)) == expected


def test_an_output_that_can_not_be_written_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"can't be written"):
        q.quantize_dynamic(two_layers(), tmp_path / "no folder" / "q.onnx")
    with pytest.raises(OSError, match="is a folder"):
        q.quantize_dynamic(two_layers(), tmp_path)


def test_external_data_leaves_small_weights_in_the_model(tmp_path: Path) -> None:
    q.quantize_dynamic(two_layers(), tmp_path / "q.onnx", use_external_data_format=True)
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]
