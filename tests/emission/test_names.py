"""The names that users and tools read in a quantized model."""

from __future__ import annotations

from emission.models import EVERYWHERE, IMAGE, content, feeds, initializers, named, quantize, two_convs
from octavo.core.qtypes import INT8
from octavo.core.recipe import Override, Style


def test_activation_names() -> None:
    result = quantize(two_convs(), feeds(IMAGE))
    q = named(result, "x_QuantizeLinear")
    assert q.outputs[0].name == "x_QuantizeLinear_Output"
    data, scale, zero = (v.name for v in q.inputs if v is not None)
    assert (data, scale) == ("x", "x_scale")
    assert zero == f"uint8_zero_point_{content(result, zero or '')}"
    assert named(result, "x_DequantizeLinear").outputs[0].name == "x_DequantizeLinear_Output"


def test_weight_names() -> None:
    result = quantize(two_convs(), feeds(IMAGE))
    dq = named(result, "w1_DequantizeLinear")
    assert [v.name for v in dq.inputs if v is not None] == [
        "w1_quantized",
        "w1_scale",
        "int8_zero_point_0_x8",
    ]
    assert dq.outputs[0].name == "w1_DequantizeLinear_Output"
    assert "w1" not in initializers(result)


def test_equal_zero_points_are_one_initializer() -> None:
    result = quantize(two_convs(), feeds(IMAGE))
    zeros = [v.const_value for v in initializers(result).values() if "zero_point" in (v.name or "")]
    assert len(zeros) == len({(t.dtype, t.numpy().tobytes()) for t in zeros if t is not None})


def test_bias_names() -> None:
    result = quantize(two_convs(), feeds(IMAGE))
    assert {"b1_quantized", "b1_quantized_scale"} <= set(initializers(result))


def test_graph_output_keeps_its_name() -> None:
    result = quantize(two_convs(), feeds(IMAGE))
    assert [v.name for v in result.model.graph.outputs] == ["y"]
    q = named(result, "y_QuantizeLinear")
    assert q.inputs[0] is not None
    assert q.inputs[0].name == "y_QuantizeLinear_Input"


def test_shared_bias_is_split_under_names_that_start_with_its_own() -> None:
    result = quantize(two_convs(shared_bias=True), feeds(IMAGE))
    readers = [named(result, n).inputs[2] for n in ("first", "second")]
    stored = [v.producer().inputs[0] for v in readers if v is not None and v.producer() is not None]  # type: ignore[union-attr]
    assert len({v.name for v in stored if v is not None}) == 2
    assert all((v.name or "").startswith("b1_quantized") for v in stored if v is not None)


def test_converted_tensor_names() -> None:
    """A reader in another type: the second pair of parameters has the suffix ``_convert``."""
    recipe = EVERYWHERE.but(overrides=(Override("r", qtype=INT8, consumers=("second",)),))
    result = quantize(two_convs(), feeds(IMAGE), recipe)
    assert {"r_scale", "r_scale_convert"} <= set(initializers(result))
    view = named(result, "second").inputs[0]
    assert view is not None
    assert view.name == "r_convert_DequantizeLinear_Output"


def test_integer_twin_names_in_qoperator_style() -> None:
    result = quantize(two_convs(clamp=None), feeds(IMAGE), EVERYWHERE.but(style=Style.QOPERATOR))
    first = named(result, "first_quant")
    assert first.op_type == "QLinearConv"
    assert [v.name for v in first.outputs] == ["a_quantized"]
    assert [v.name for v in first.inputs if v is not None and "zero_point" not in (v.name or "")] == [
        "x_QuantizeLinear_Output", "x_scale", "w1_quantized", "w1_scale", "a_scale", "b1_quantized",
    ]  # fmt: skip
    assert [v.name for v in result.model.graph.outputs] == ["y"]
