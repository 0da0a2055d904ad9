"""Ranges that would ruin a model are gone around, with a stated reason; broken numbers are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from quantizing import EVERYWHERE, convolutions, error, feeds_for, ops, reason, run, steps, weights

import octavo
from octavo.core.plan import Key
from octavo.core.qtypes import INT8, UINT8
from octavo.errors import DataError, ModelError

STYLES = ["qdq", "qoperator"]
F = onnx.TensorProto.FLOAT


def masked_attention(mask: np.ndarray, op: str = "Add") -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], "q"),
        node("MatMul", ["x", "wk"], ["k"], "k"),
        node("Transpose", ["k"], ["kt"], "kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"], "scores"),
        node("Add", ["scores", "mask"], ["masked"], "mask_add")
        if op == "Add"
        else node("Where", ["keep", "scores", "mask"], ["masked"], "mask_add"),
        node("Softmax", ["masked"], ["p"], "softmax", axis=-1),
        node("MatMul", ["p", "x"], ["y"], "context"),
    ]
    arrays: dict[str, Any] = {"wq": weights(16, 16) / 8, "wk": weights(16, 16, seed=1) / 8, "mask": mask}
    if op == "Where":
        arrays["keep"] = np.array([[True] * 3 + [False]])
    return model(nodes, [tensor("x", [1, 4, 16])], [tensor("y", [1, 4, 16])], arrays)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("low", [-1e4, float(np.finfo(np.float32).min), -np.inf])
def test_a_mask_before_a_softmax_stays_float_and_the_model_stays_right(low: float, style: str) -> None:
    proto = masked_attention(np.array([[0, 0, 0, low]], np.float32))
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    assert "masks the scores of a Softmax" in reason(result, "mask_add")
    assert error(result, proto, data) < 0.05


def test_a_mask_chosen_by_where_stays_float() -> None:
    proto = masked_attention(np.float32(-3.4e38), "Where")
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE)
    assert "masks the scores of a Softmax" in reason(result, "mask_add")
    assert error(result, proto, data) < 0.05


def test_a_mask_that_is_computed_far_from_the_softmax_is_seen_in_its_numbers() -> None:
    proto = model(
        [
            node("Sub", ["one", "m"], ["inverse"], "Sub_0"),
            node("Mul", ["inverse", "low"], ["bias"], "Mul_0"),
            node("MatMul", ["x", "w"], ["s"], "MatMul_0"),
            node("Add", ["s", "bias"], ["t"], "Add_0"),
            node("Softmax", ["t"], ["y"], "Softmax_0"),
        ],
        [tensor("x", [2, 16]), tensor("m", [1, 16])],
        [tensor("y", [2, 16])],
        {"one": np.float32(1), "low": np.finfo(np.float32).min, "w": weights(16, 16) / 8},
    )
    data = feeds_for(proto, m=(np.arange(16) < 12).astype(np.float32)[None])
    result = octavo.quantize(proto, data, recipe=EVERYWHERE)
    assert "Mul_0" not in result.plan.nodes
    assert error(result, proto, data) < 0.05


def detection_head() -> onnx.ModelProto:
    """Boxes in 0 … 640 and scores in 0 … 1, joined for the caller."""
    return model(
        [
            node("Conv", ["x", "wb"], ["b"], "boxes", pads=[1, 1, 1, 1]),
            node("Mul", ["b", "size"], ["bb"], "pixels"),
            node("Conv", ["x", "ws"], ["s"], "scores", pads=[1, 1, 1, 1]),
            node("Sigmoid", ["s"], ["ss"], "sigmoid"),
            node("Concat", ["bb", "ss"], ["y"], "join", axis=1),
        ],
        [tensor("x", [1, 8, 6, 6])],
        [tensor("y", [1, 16, 6, 6])],
        {"wb": weights(8, 8, 3, 3) / 8, "ws": weights(8, 8, 3, 3, seed=1) / 8, "size": np.float32(300)},
    )


@pytest.mark.parametrize("style", STYLES)
def test_a_concat_of_boxes_and_scores_stays_float_and_the_scores_survive(style: str) -> None:
    proto = detection_head()
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    assert "joins ranges of" in reason(result, "join")
    want, got = run(proto, data[0])["y"][:, 8:], run(result, data[0])["y"][:, 8:]
    assert np.abs(want - got).max() < 0.05


def test_a_concat_of_like_ranges_is_quantized() -> None:
    proto = detection_head()
    proto.graph.initializer[2].CopyFrom(onnx.numpy_helper.from_array(np.float32(1.0), "size"))
    assert "join" in octavo.quantize(proto, feeds_for(proto), recipe=EVERYWHERE).plan.nodes


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_constant_activation_is_quantized_exactly(style: str, value: float) -> None:
    proto = convolutions(1)
    data = [{"x": np.full((1, 8, 8, 8), value, np.float32)}]
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    params = result.params[Key("x")]
    assert np.isfinite(params.scale)
    assert params.scale > 0
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize("style", [*STYLES, "integer"])
def test_all_zero_weights_give_the_bias_alone(style: str) -> None:
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["y"], "Gemm_0")],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 8])],
        {"w": np.zeros((16, 8), np.float32), "b": weights(8)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, None if style == "integer" else data, style=style, op_types=["Gemm"])
    assert error(result, proto, data) < 0.02


def test_an_activation_without_elements_stays_float() -> None:
    proto = model(
        [
            node("Slice", ["x", "from", "to"], ["none"], "Slice_0"),
            node("MatMul", ["none", "w"], ["y"], "MatMul_0"),
            node("MatMul", ["x", "w"], ["z"], "MatMul_1"),
        ],
        [tensor("x", ["n", 16])],
        [tensor("y", ["k", 16]), tensor("z", ["n", 16])],
        {"w": weights(16, 16), "from": np.int64([0]), "to": np.int64([0])},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert not [key for key in result.plan.entries if key.tensor == "none"]
    assert "MatMul_1" in result.plan.nodes
    assert run(result, data[0])["y"].shape == (0, 16)


def branches() -> onnx.ModelProto:
    def branch(name: str) -> onnx.GraphProto:
        nodes = [
            node("Conv", ["h", f"w_{name}"], ["c"], f"conv_{name}", pads=[1, 1, 1, 1]),
            node("Relu", ["c"], ["out"], f"relu_{name}"),
        ]
        return graph(nodes, [], [tensor("out", [1, 8, 6, 6])], name=name)

    return model(
        [
            node("Conv", ["x", "w_then"], ["h"], "conv_0", pads=[1, 1, 1, 1]),
            node("If", ["cond"], ["y"], "If_0", then_branch=branch("then"), else_branch=branch("else")),
        ],
        [tensor("x", [1, 8, 6, 6]), tensor("cond", [], onnx.TensorProto.BOOL)],
        [tensor("y", [1, 8, 6, 6])],
        {"w_then": weights(8, 8, 3, 3) / 8, "w_else": weights(8, 8, 3, 3, seed=1) / 8},
    )


@pytest.mark.parametrize("recipe", [octavo.W8A8, EVERYWHERE], ids=["target", "everywhere"])
@pytest.mark.parametrize("style", STYLES)
def test_a_branch_that_calibration_never_took_stays_float(recipe: octavo.Recipe, style: str) -> None:
    proto = branches()
    data = feeds_for(proto, cond=np.array(True))
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    assert "no value in any of the 4" in reason(result, "conv_else")
    assert {"conv_0", "conv_then"} <= set(result.plan.nodes)
    other = [{**f, "cond": np.array(False)} for f in data]
    assert error(result, proto, data + other) < 0.05


def test_a_nan_in_a_weight_is_an_error_that_names_the_weight() -> None:
    proto = convolutions(1)
    bad = weights(8, 8, 3, 3)
    bad[0, 0, 0, 0] = np.nan
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(bad, "w0"))
    with pytest.raises(ModelError, match=r"Weight 'w0' holds NaN or infinity.*'Conv_0'"):
        octavo.quantize(
            proto,
            feeds_for(proto, 1),
            recipe=octavo.W8A8.but(
                overrides=(octavo.Override("r0", range=(0, 1)), octavo.Override("x", range=(-1, 1)))
            ),
        )


def test_an_infinity_in_a_bias_is_an_error_that_names_the_bias() -> None:
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["y"], "Gemm_0")],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 8])],
        {"w": weights(16, 8), "b": np.float32([np.inf] + [0.0] * 7)},
    )
    with pytest.raises(ModelError, match=r"[Bb]ias 'b'.*'Gemm_0'"):
        octavo.quantize(proto, feeds_for(proto), effort="plain")


def test_nan_in_an_activation_is_an_error_that_names_tensor_and_sample() -> None:
    proto = model(
        [
            node("Sqrt", ["x"], ["root"], "Sqrt_0"),
            node("MatMul", ["root", "w"], ["y"], "MatMul_0"),
        ],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16])],
        {"w": weights(16, 16)},
    )
    data = [{"x": np.ones((2, 16), np.float32)}, {"x": -np.ones((2, 16), np.float32)}]
    with pytest.raises(DataError, match=r"'root'.*sample 1"):
        octavo.quantize(proto, data, effort="plain")


def test_an_infinite_activation_stays_float() -> None:
    proto = model(
        [
            node("Log", ["x"], ["log"], "Log_0"),
            node("MatMul", ["log", "w"], ["y"], "MatMul_0"),
            node("MatMul", ["x", "w"], ["z"], "MatMul_1"),
        ],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16]), tensor("z", [2, 16])],
        {"w": np.eye(16, dtype=np.float32)},
    )
    result = octavo.quantize(proto, [{"x": np.zeros((2, 16), np.float32)}], effort="plain")
    assert not [key for key in result.plan.entries if key.tensor in ("log", "y")]
    assert "MatMul_1" in result.plan.nodes


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_bias_beyond_int32_raises_the_scale_of_its_weight(style: str, per_channel: bool) -> None:
    w = weights(8, 8, 1, 1)
    w[0] *= 1e-12
    proto = model(
        [node("Conv", ["x", "w", "b"], ["y"], "Conv_0")],
        [tensor("x", [1, 8, 4, 4])],
        [tensor("y", [1, 8, 4, 4])],
        {"w": w if per_channel else w * np.float32(1e-12), "b": np.float32([50, 1, 2, 3, 4, 5, 6, 7])},
    )
    data = feeds_for(proto)
    grain = octavo.PerChannel() if per_channel else octavo.PerTensor()
    recipe = EVERYWHERE.but(weights=octavo.W8A8.weights.but(granularity=grain))
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    assert steps(result, proto, data, "y", "y") <= 2


@pytest.mark.parametrize("style", STYLES)
def test_a_bias_shared_by_two_layers_gets_a_scale_for_each(style: str) -> None:
    proto = model(
        [
            node("Conv", ["x", "w0", "b"], ["h"], "Conv_0"),
            node("Conv", ["h", "w1", "b"], ["y"], "Conv_1"),
        ],
        [tensor("x", [1, 8, 4, 4])],
        [tensor("y", [1, 8, 4, 4])],
        {"w0": weights(8, 8, 1, 1), "w1": weights(8, 8, 1, 1, seed=1) / 50, "b": weights(8, seed=2)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    first, second = (result.params[Key("b", f"Conv_{i}")].scale for i in (0, 1))
    assert not np.array_equal(first, second)
    biases = [
        v for v in result.model.graph.initializers.values() if v.dtype.name == "INT32" and v.shape == (8,)
    ]
    assert len([v for v in biases if v.name.startswith("b")]) >= 2
    assert error(result, proto, data) < 0.05


# ---- fusing Relu and Clip


SCHEMES = {
    "uint8": octavo.Scheme(UINT8),
    "int8": octavo.Scheme(INT8),
    "int8 symmetric": octavo.Scheme(INT8, symmetric=True),
    "uint8 symmetric": octavo.Scheme(UINT8, symmetric=True),
    "uint8 reduced": octavo.Scheme(UINT8, reduce_range=True),
    "int8 reduced": octavo.Scheme(INT8, reduce_range=True),
}


def clamped(kind: str) -> onnx.ModelProto:
    bounds = {
        "relu6": (0.0, 6.0),
        "relu1": (0.0, 1.0),
        "above": (1.0, 2.0),
        "around": (-1.0, 1.5),
        "below": (-3.0, 0.0),
    }
    arrays: dict[str, Any] = {"w": weights(8, 8, 1, 1)}
    clamp = node("Relu", ["m"], ["r"], "clamp")
    if kind in bounds:
        arrays["low"], arrays["high"] = (np.float32(b) for b in bounds[kind])
        clamp = node("Clip", ["m", "low", "high"], ["r"], "clamp")
    elif kind == "open":
        arrays["low"] = np.float32(0)
        clamp = node("Clip", ["m", "low"], ["r"], "clamp")
    return model(
        [node("Conv", ["x", "w"], ["m"], "Conv_0"), clamp],
        [tensor("x", [1, 8, 4, 4])],
        [tensor("r", [1, 8, 4, 4])],
        arrays,
    )


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("kind", ["relu", "relu6", "relu1", "open", "above", "around", "below"])
def test_a_clamp_is_fused_only_where_nothing_is_lost(kind: str, scheme: octavo.Scheme, style: str) -> None:
    proto = clamped(kind)
    data = feeds_for(proto)
    recipe = EVERYWHERE.but(activations=scheme)
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    inside = {"relu", "relu6", "relu1", "open", "around", "below"}
    exact = not scheme.symmetric and not (
        scheme.reduce_range and (scheme.qtype.signed or kind not in ("relu", "open"))
    )
    if style == "qdq" or scheme.qtype == UINT8:
        assert ("clamp" in result.plan.fused) == (kind in inside and exact)
    wild = [{"x": 4 * f["x"]} for f in data]
    plain, got = (run(m, f)["r"] for m in (proto, result) for f in wild[:1])
    assert got.min() >= plain.min() - 0.1
    assert got.max() <= plain.max() + 0.1
    scale = max(float(result.params[Key(t)].scale) for t in ("m", "r", "x") if Key(t) in result.params)
    assert error(result, proto, data) * np.abs(run(proto, data[0])["r"]).max() <= 4 * scale + 0.05


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("recipe", [octavo.W8A8, EVERYWHERE], ids=["target", "everywhere"])
def test_a_relu_whose_input_has_another_reader_is_kept(style: str, recipe: octavo.Recipe) -> None:
    proto = model(
        [
            node("MatMul", ["x", "w"], ["m"], "MatMul_0"),
            node("Relu", ["m"], ["r"], "Relu_0"),
            node("Add", ["m", "r"], ["y"], "Add_0"),
        ],
        [tensor("x", [2, 16])],
        [tensor("y", [2, 16])],
        {"w": weights(16, 16)},
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    assert not result.plan.fused
    assert ops(result)["Relu"] == 1
    assert error(result, proto, data) < 0.03


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("clamp", ["Relu", "Clip"])
def test_a_clamp_whose_input_is_a_graph_output_is_kept(style: str, clamp: str) -> None:
    arrays: dict[str, Any] = {"w": weights(8, 8, 1, 1)}
    more = []
    if clamp == "Clip":
        arrays.update(low=np.float32(0), high=np.float32(6))
        more = ["low", "high"]
    proto = model(
        [node("Conv", ["x", "w"], ["m"], "Conv_0"), node(clamp, ["m", *more], ["y"], "clamp")],
        [tensor("x", [1, 8, 4, 4])],
        [tensor("m", [1, 8, 4, 4]), tensor("y", [1, 8, 4, 4])],
        arrays,
    )
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style)
    assert not result.plan.fused
    assert error(result, proto, data) < 0.02


def test_a_relu_that_was_never_active_still_gives_zero() -> None:
    proto = clamped("relu")
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(-np.ones((8, 8, 1, 1), np.float32), "w"))
    data = [{"x": np.abs(f["x"])} for f in feeds_for(proto)]
    result = octavo.quantize(proto, data, recipe=EVERYWHERE.but(activations=octavo.Scheme(INT8)))
    assert "clamp" in result.plan.fused
    assert run(result, data[0])["r"].max() == 0.0
