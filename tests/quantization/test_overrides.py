"""``TensorQuantOverrides``: the helper's questions, what it refuses, and what comes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from octavo.quantization import QuantType, quantize_static
from octavo.quantization.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper
from quantization.graphs import CASES
from quantization.peer import Reader, error, samples

U8, U16, S8 = QuantType.QUInt8, QuantType.QUInt16, QuantType.QInt8


def made(overrides: dict[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """The initializers of the quantized model out.onnx."""
    model = CASES["Mul"]()
    options = {"TensorQuantOverrides": overrides}
    quantize_static(
        model, folder / "out.onnx", Reader(samples(model)), activation_type=U8, extra_options=options
    )
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(folder / "out.onnx").graph.initializer}


def test_queries() -> None:
    raw = {
        "x": [{"quant_type": U16, "convert": {"quant_type": U8, "recv_nodes": {"b"}}}],
        "w": [{"axis": 0, "quant_type": S8}, {}],
        "v": [{"scale": 1.0, "zero_point": 0}],
    }
    helper = TensorQuantOverridesHelper(raw)
    assert helper.has_per_tensor_overrides("x")
    assert helper.has_per_channel_overrides("w")
    assert helper.overrides_scale_zp("v")
    assert not helper.overrides_scale_zp("x")
    assert helper.get_quant_types() == {U16, U8, S8}
    assert helper.get_per_tensor_overrides("x") == raw["x"][0]
    assert helper.get_per_channel_overrides("w") == raw["w"]
    assert helper.get_per_tensor_overrides("none", {}) == {}
    with pytest.raises(ValueError, match="per channel"):
        helper.get_per_tensor_overrides("w")
    with pytest.raises(ValueError, match="per tensor"):
        helper.get_per_channel_overrides("x")
    assert helper.get_node_output_qtype_info("x", U8).quant_type is U16
    assert helper.get_node_input_qtype_info("x", "a", U8).quant_type is U16
    assert helper.get_node_input_qtype_info("x", "b", U16).quant_type is U8
    assert "QUInt16" in helper.pprint_str()
    assert (len(helper), set(helper), helper.empty()) == (3, {"x", "w", "v"}, False)


def test_it_is_a_mapping_that_can_be_changed() -> None:
    helper = TensorQuantOverridesHelper({})
    assert helper.empty()
    assert helper.update_tensor_overrides("x", {"symmetric": True})
    assert not helper.update_tensor_overrides("x", {"symmetric": False}, overwrite=False)
    assert helper.update_tensor_overrides("x", {"rmax": 1.0}, channels=[0, 1])
    assert helper["x"] == [{"symmetric": True, "rmax": 1.0}]
    helper["y"] = [{"quant_type": U16}]
    assert helper.get_quant_types() == {U16}
    del helper["x"]
    assert helper.get_dict() == {"y": [{"quant_type": U16}]}


def test_type_info_goes_to_and_from_a_dict() -> None:
    info = QuantTypeInfo.load_from_dict({"quant_type": U16, "symmetric": True}, default_qtype=U8)
    assert info == QuantTypeInfo(U16)
    assert info != QuantTypeInfo(U8)
    raw: dict[str, Any] = {}
    info.save_to_dict(raw)
    assert raw == {"quant_type": U16, "symmetric": True}


@pytest.mark.parametrize(
    "overrides, says",
    [
        ({"nobody": [{"symmetric": True}]}, "nobody"),
        ({"t": [{"symetric": True}]}, "did you mean 'symmetric'"),
        ({"t": [{"scale": 1.0}]}, "Must provide both"),
        ({"t": [{"scale": 1.0, "zero_point": 0, "rmax": 1.0}]}, r"\[rmax\] are invalid"),
        ({"t": [{"axis": 0}]}, "leave axis out"),
        ({"t": [{"reduce_range": True}]}, "initializers"),
        ({"t": [{"convert": {"symmetric": True}}]}, "needs a quant_type"),
        ({"t": [{"convert": {"quant_type": U8}}]}, "does nothing"),
        ({"w": [{"convert": {"quant_type": U16}}]}, "for activations"),
        ({"w": [{"axis": 7}]}, "axis 7"),
        ({"w": [{"axis": 0}, {}, {}]}, "4 channels"),
        ({"w": [{"axis": 0, "rmin": 0.0}]}, "'rmin' and 'rmax'"),
        ({"w": [{}, {}]}, "no axis"),
        ({"w": {}}, "list of dicts"),
    ],
)
def test_what_makes_no_sense_is_refused(overrides: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        made(overrides, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_conversion_for_one_reader(tmp_path: Path) -> None:
    convert = {"quant_type": U8, "recv_nodes": {"conv"}}
    found = made({"x": [{"quant_type": U16, "convert": convert}]}, tmp_path)
    assert found["x_scale"] == pytest.approx(found["x_scale_convert"] * 255 / 65535)
    assert (found["x_zero_point"].dtype, found["x_zero_point_convert"].dtype) == (np.uint16, np.uint8)
    assert found["b_quantized_scale"] == pytest.approx(found["x_scale_convert"] * found["w_scale"])
    assert error(CASES["Mul"](), onnx.load(tmp_path / "out.onnx")) < 1.0


def test_a_tensor_that_is_not_quantized_may_be_named(tmp_path: Path) -> None:
    model = CASES["Mul"]()
    quantize_static(
        model,
        tmp_path / "out.onnx",
        Reader(samples(model)),
        activation_type=U8,
        op_types_to_quantize=["Conv"],
        extra_options={"TensorQuantOverrides": {"u": [{"symmetric": True}]}},
    )
    assert "u_scale" not in {t.name for t in onnx.load(tmp_path / "out.onnx").graph.initializer}


def test_ranges_of_channels(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [{"rmin": -1.0, "rmax": 1.0 * (i + 1)} for i in range(4)]
    entries[0]["axis"] = 0
    found = made({"w": entries}, tmp_path)
    np.testing.assert_allclose(found["w_scale"], np.arange(1, 5) * 2 / 254, rtol=1e-6)
