"""Settings for single tensors: given parameters, ranges, types, float islands and conversions on edges."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import EVERYWHERE, convolutions, error, feeds_for, ops, weights

import octavo
from octavo.core.plan import Derived, Fixed, Key, Measured
from octavo.core.qtypes import INT8, INT16, UINT8, UINT16
from octavo.errors import RecipeError
from octavo.model.graph import query

STYLES = ["qdq", "qoperator"]


def quantize(proto: onnx.ModelProto, *overrides: octavo.Override, style: str = "qdq") -> octavo.Result:
    recipe = EVERYWHERE.but(overrides=overrides)
    return octavo.quantize(proto, feeds_for(proto), recipe=recipe, style=style)


@pytest.mark.parametrize("style", STYLES)
def test_scale_and_zero_point_of_an_activation_are_plain_numbers(style: str) -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("r0", scale=0.05, zero_point=3), style=style)
    params = result.params[Key("r0")]
    assert (params.scale, params.zero_point) == (np.float32(0.05), 3)
    assert isinstance(result.plan.entries[Key("r0")], Fixed)
    scale, zero = (result.model.graph.initializers[n] for n in ("r0_scale", "uint8_zero_point_3"))
    assert scale.const_value is not None
    assert scale.const_value.numpy() == np.float32(0.05)
    assert zero.uses()
    assert error(result, proto, feeds_for(proto)) < 0.1


@pytest.mark.parametrize("style", STYLES)
def test_a_range_of_an_activation_replaces_the_measured_one(style: str) -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("r0", range=(0.0, 25.5)), style=style)
    assert result.params[Key("r0")].scale == np.float32(0.1)
    assert "r0" not in result.plan.needs()


@pytest.mark.parametrize("style", STYLES)
def test_a_scale_of_a_weight_holds_for_the_weight_and_its_bias(style: str) -> None:
    proto = convolutions(1)
    result = quantize(proto, octavo.Override("w0", scale=0.01, zero_point=0), style=style)
    assert result.params[Key("w0", "Conv_0")].scale == np.float32(0.01)
    bias = result.params[Key("b0", "Conv_0")]
    assert np.all(bias.scale == result.params[Key("x")].scale * np.float32(0.01))
    assert error(result, proto, feeds_for(proto)) < 0.1


def test_scales_per_channel_of_a_weight_are_taken_over() -> None:
    proto = convolutions(1)
    given = np.linspace(0.005, 0.01, 8)
    result = quantize(proto, octavo.Override("w0", scale=given, zero_point=np.zeros(8, int)))
    assert np.array_equal(result.params[Key("w0", "Conv_0")].scale, given.astype(np.float32))


def test_one_tensor_of_16_bits_raises_the_opset_by_conversion() -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("r0", qtype=UINT16))
    assert result.params[Key("r0")].qtype == UINT16
    assert result.params[Key("r1")].qtype == UINT8
    assert query.opset(result.model) == 21
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_signed_type_for_one_tensor_keeps_the_others() -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("r0", qtype=INT8))
    assert result.params[Key("r0")].qtype == INT8
    assert error(result, proto, feeds_for(proto)) < 0.05


@pytest.mark.parametrize("style", STYLES)
def test_a_tensor_kept_in_float_has_no_quantization_around_it(style: str) -> None:
    proto = convolutions(3)
    result = quantize(proto, octavo.Override("r1", keep_float=True), style=style)
    assert not [k for k in result.plan.entries if k.tensor == "r1"]
    assert not [n for n in result.model.graph.all_nodes() if n.name and n.name.startswith("r1_Q")]
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_weight_kept_in_float_leaves_its_bias_float() -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("w1", keep_float=True))
    assert not [k for k in result.plan.entries if k.tensor in ("w1", "b1")]
    assert result.model.graph.initializers["w1"].dtype.name == "FLOAT"
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_clamp_is_kept_where_the_tensor_that_fused_it_stays_float() -> None:
    proto = convolutions(2)
    result = quantize(proto, octavo.Override("r0", keep_float=True))
    assert ops(result)["Relu"] >= 1
    assert error(result, proto, feeds_for(proto)) < 0.05


@pytest.mark.parametrize(
    "override",
    [
        octavo.Override("r0", range=(-8.0, 8.0)),
        octavo.Override("r0", symmetric=True),
        octavo.Override("r0", scale=0.1, zero_point=100),
    ],
    ids=["range", "symmetric", "zero point"],
)
@pytest.mark.parametrize("style", STYLES)
def test_a_clamp_is_kept_where_an_override_lets_the_range_go_below_zero(
    override: octavo.Override, style: str
) -> None:
    proto = convolutions(2)
    result = quantize(proto, override, style=style)
    assert "Relu_0" not in result.plan.fused
    assert error(result, proto, feeds_for(proto)) < 0.15


def two_readers() -> onnx.ModelProto:
    """One tensor with two readers, of which one wants more precision."""
    return model(
        [
            node("Conv", ["x", "w0"], ["t"], "Conv_0", pads=[1, 1, 1, 1]),
            node("Conv", ["t", "w1"], ["y"], "Conv_1", pads=[1, 1, 1, 1]),
            node("Conv", ["t", "w2"], ["z"], "Conv_2", pads=[1, 1, 1, 1]),
        ],
        [tensor("x", [1, 8, 6, 6])],
        [tensor("y", [1, 8, 6, 6]), tensor("z", [1, 8, 6, 6])],
        {f"w{i}": weights(8, 8, 3, 3, seed=i) / 8 for i in range(3)},
    )


def test_readers_get_a_conversion_on_their_edge_only() -> None:
    proto = two_readers()
    data = feeds_for(proto)
    result = quantize(
        proto,
        octavo.Override("t", qtype=UINT16),
        octavo.Override("t", qtype=UINT8, consumers=("Conv_2",)),
        octavo.Override("y", qtype=UINT16),
        octavo.Override("x", qtype=UINT16),
    )
    assert result.params[Key("t")].qtype == UINT16
    assert result.params[Key("t", "Conv_2")].qtype == UINT8
    nodes = {n.name: n for n in result.model.graph}
    into = {name: nodes[name].inputs[0].producer().inputs[0].dtype.name for name in ("Conv_1", "Conv_2")}
    assert into == {"Conv_1": "UINT16", "Conv_2": "UINT8"}
    assert error(result, proto, data) < 0.05


def test_a_conversion_needs_a_reader_that_reads_the_tensor() -> None:
    with pytest.raises(RecipeError, match=r"'Conv_9'.*did you mean"):
        quantize(two_readers(), octavo.Override("t", qtype=INT16, consumers=("Conv_9",)))
    with pytest.raises(RecipeError, match="'Conv_0' does not read"):
        quantize(two_readers(), octavo.Override("t", qtype=INT16, consumers=("Conv_0",)))


def test_the_bias_follows_the_converted_input_of_its_product() -> None:
    proto = convolutions(2)
    result = quantize(
        proto,
        octavo.Override("r0", qtype=UINT16),
        octavo.Override("r0", qtype=UINT8, consumers=("Conv_1",)),
    )
    entry = result.plan.entries[Key("b1", "Conv_1")]
    assert isinstance(entry, Derived)
    assert entry.x == ("r0", "Conv_1")
    assert error(result, proto, feeds_for(proto)) < 0.05


def test_a_pattern_overrides_all_tensors_that_it_fits() -> None:
    result = quantize(convolutions(3), octavo.Override("r*", method=octavo.Percentile(99.9)))
    methods = {k.tensor: e.scheme.method for k, e in result.plan.entries.items() if isinstance(e, Measured)}
    assert methods == {"x": octavo.MinMax(), **dict.fromkeys(("r0", "r1", "r2"), octavo.Percentile(99.9))}


def test_an_unknown_tensor_is_an_error_that_lists_close_names() -> None:
    with pytest.raises(RecipeError, match=r"no such tensor; did you mean .*'r0'"):
        quantize(convolutions(2), octavo.Override("r00", qtype=INT8))


def test_a_tensor_that_is_not_quantized_is_an_error_that_says_so() -> None:
    with pytest.raises(RecipeError, match="exists but is not quantized"):
        quantize(convolutions(2), octavo.Override("c0", qtype=INT8))


def test_a_tensor_that_shares_parameters_is_an_error_that_names_the_owner() -> None:
    proto = model(
        [
            node("Conv", ["x", "w"], ["t"], "Conv_0"),
            node("MaxPool", ["t"], ["p"], "Pool_0", kernel_shape=[2, 2]),
            node("Conv", ["p", "w"], ["y"], "Conv_1"),
        ],
        [tensor("x", [1, 8, 12, 12])],
        [tensor("y", [1, 8, 7, 7])],
        {"w": weights(8, 8, 3, 3) / 8},
    )
    with pytest.raises(RecipeError, match=r"parameters of 't'"):
        quantize(proto, octavo.Override("p", qtype=INT8))
