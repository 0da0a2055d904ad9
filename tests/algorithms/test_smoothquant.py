from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo

from .nets import outlier_block, sentences
from .stepping import EVERYWHERE, difference, error, float_step, op_types, weights_of

FRESH = sentences(6, seed=9)


def test_the_float_model_computes_the_same() -> None:
    proto = outlier_block()
    smoothed, report = float_step(proto, "smoothquant", sentences())
    assert len(report.changed) == 2  # q with k, and o
    assert difference(proto, smoothed, FRESH) < 1e-5


def test_folding_adds_no_node_and_no_weight() -> None:
    proto = outlier_block()
    smoothed, _ = float_step(proto, "smoothquant", sentences())
    assert op_types(smoothed) == op_types(proto)
    before, after = weights_of(proto), weights_of(smoothed)
    assert {n: a.shape for n, a in before.items()} == {n: a.shape for n, a in after.items()}


def test_outliers_leave_the_normalization() -> None:
    proto = outlier_block()
    smoothed, _ = float_step(proto, "smoothquant:alpha=0.5", sentences())
    before, after = (np.abs(weights_of(m)["gamma"]) for m in (proto, smoothed))
    assert after.max() / np.median(after) < 0.5 * before.max() / np.median(before)


def test_a_factor_is_the_formula_of_the_paper_up_to_a_common_factor() -> None:
    proto, samples = outlier_block(), sentences()
    smoothed, _ = float_step(proto, "smoothquant:alpha=0.4", samples)
    old, new = weights_of(proto), weights_of(smoothed)
    x = np.concatenate([f["x"].reshape(-1, 32) for f in samples]).astype(np.float64)
    h = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * old["gamma"] + old["beta"]
    w = np.maximum(np.abs(old["wq"]).max(1), np.abs(old["wk"]).max(1))
    s = np.abs(h).max(0) ** 0.4 / w**0.6
    ratio = (old["gamma"] / new["gamma"]) / s
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)


def test_the_error_of_the_quantized_model_falls() -> None:
    proto, samples = outlier_block(), sentences()
    plain = error(proto, samples, FRESH, EVERYWHERE)
    smoothed = error(proto, samples, FRESH, EVERYWHERE.but(steps=("smoothquant",)))
    assert smoothed < 0.5 * plain


def test_an_input_that_others_read_is_left_alone() -> None:
    _, report = float_step(outlier_block(tail="residual"), "smoothquant", sentences())
    reasons = {r.layer: r.reason for r in report.refused}
    assert "read by other" in reasons["q, k"]


def test_without_folding_a_mul_stands_before_the_layers() -> None:
    proto = outlier_block(tail="residual")
    smoothed, report = float_step(proto, "smoothquant:fold=no", sentences())
    assert op_types(smoothed).count("Mul") > op_types(proto).count("Mul")
    assert any("by a Mul" in change.what for change in report.changed)
    assert difference(proto, smoothed, FRESH) < 1e-5


def shared(outputs: int) -> onnx.ModelProto:
    """A normalization with two outlier channels that a residual reads too, and a layer behind it."""
    rng = np.random.default_rng(4)
    w = (rng.standard_normal((32, outputs)) * 0.2).astype(np.float32)
    w[[3, 17]] *= 0.05
    return model(
        [
            node("LayerNormalization", ["x", "g"], ["h"], "norm", axis=-1),
            node("MatMul", ["h", "w"], ["y"], "m"),
            node("Add", ["h", "x"], ["sum"], "residual"),
        ],
        [tensor("x", ["n", 5, 32])],
        [tensor("y", ["n", 5, outputs]), tensor("sum", ["n", 5, 32])],
        {"g": outlier(), "w": w},
    )


def test_where_nothing_takes_the_factors_up_a_mul_does_if_that_is_requested_and_worth_it() -> None:
    proto = shared(outputs=256)
    smoothed, report = float_step(proto, "smoothquant:mul=0.5", sentences(), octavo.W8A8)
    assert [(c.layer, c.what.partition(", ")[2]) for c in report.changed] == [("m", "by a Mul")]
    assert op_types(smoothed) == ["LayerNormalization", "Mul", "MatMul", "Add"]
    assert difference(proto, smoothed, FRESH) < 1e-5
    plain = error(proto, sentences(), FRESH, octavo.W8A8)
    assert error(proto, sentences(), FRESH, octavo.W8A8.but(steps=("smoothquant:mul=0.5",))) < 0.3 * plain

    _, report = float_step(proto, "smoothquant:mul=0.9999", sentences(), octavo.W8A8)
    assert ["hardly fall" in r.reason for r in report.refused] == [True]
    for text, outputs in (("smoothquant", 256), ("smoothquant:mul=0.5", 16)):
        same, report = float_step(shared(outputs), text, sentences(), octavo.W8A8)
        assert ["read by residual" in r.reason for r in report.refused] == [True]
        assert "Mul" not in op_types(same)


def test_the_one_layer_that_ends_a_convolutional_model_gets_no_mul() -> None:
    rng = np.random.default_rng(6)
    proto = model(
        [
            node("Conv", ["x", "k"], ["c"], "conv"),
            node("Softplus", ["c"], ["s"], "act"),
            node("GlobalAveragePool", ["s"], ["p"], "pool"),
            node("Flatten", ["p"], ["f"], "flat"),
            node("Gemm", ["f", "w"], ["y"], "end"),
        ],
        [tensor("x", ["n", 16, 6, 6])],
        [tensor("y", ["n", 256])],
        {
            "k": (rng.standard_normal((32, 16, 1, 1)) * outlier()[:, None, None, None]).astype(np.float32),
            "w": (rng.standard_normal((32, 256)) / outlier()[:, None]).astype(np.float32),
        },
    )
    samples = [{"x": rng.standard_normal((1, 16, 6, 6)).astype(np.float32)} for _ in range(8)]
    _, report = float_step(proto, "smoothquant:mul=0.5", samples, octavo.W8A8)
    assert ["Flatten" in r.reason for r in report.refused] == [True]


def test_a_mul_is_no_use_behind_a_tensor_that_is_made_in_8_bits() -> None:
    smoothed, report = float_step(shared(outputs=256), "smoothquant:mul=0.5", sentences(), EVERYWHERE)
    assert ["read by residual" in r.reason for r in report.refused] == [True]
    assert "Mul" not in op_types(smoothed)


def test_a_mul_is_no_use_behind_an_input_that_is_rounded_as_it_comes() -> None:
    proto = shared(outputs=256)
    proto.graph.node[1].input[0] = "x"
    samples = [{"x": f["x"] * outlier()} for f in sentences(8)]
    result = octavo.quantize(proto, samples, target="qnn", effort="plain")
    assert "Mul" not in op_types(result.model)
    assert "Mul" in op_types(octavo.quantize(proto, samples, effort="plain").model)


def test_a_layer_that_gains_nothing_is_left_alone() -> None:
    rng = np.random.default_rng(0)
    arrays = {"g": np.ones(32, np.float32), "w": rng.choice([-1.0, 1.0], (32, 16)).astype(np.float32)}
    arrays["w"][3] *= 127  # int8 holds these weights as they are
    proto = model(
        [
            node("LayerNormalization", ["x", "g"], ["h"], "norm", axis=-1),
            node("MatMul", ["h", "w"], ["y"], "m"),
        ],
        [tensor("x", ["n", 5, 32])],
        [tensor("y", ["n", 5, 16])],
        arrays,
    )
    smoothed, report = float_step(proto, "smoothquant:alpha=0", sentences())
    assert ["not fall" in r.reason for r in report.refused] == [True]
    np.testing.assert_array_equal(weights_of(smoothed)["w"], arrays["w"])
    forced, report = float_step(proto, "smoothquant:alpha=0:check=no", sentences())
    assert report.changed[0].after > report.changed[0].before
    assert difference(proto, forced, FRESH) < 1e-4


@pytest.mark.parametrize("op", ["Relu", "LeakyRelu"])
def test_factors_go_through_an_activation_into_the_layer_before(op: str) -> None:
    rng = np.random.default_rng(3)
    outlier = np.ones(40, np.float32)
    outlier[5] = 60
    arrays = {
        "w0": (rng.standard_normal((32, 40)) * 0.2 * outlier).astype(np.float32),
        "b0": rng.standard_normal(40).astype(np.float32),
        "w1": (rng.standard_normal((40, 16)) / outlier[:, None]).astype(np.float32),
    }
    proto = model(
        [
            node("MatMul", ["x", "w0"], ["h0"], "up"),
            node("Add", ["h0", "b0"], ["h1"], "bias"),
            node(op, ["h1"], ["h2"], "act"),
            node("MatMul", ["h2", "w1"], ["y"], "down"),
        ],
        [tensor("x", ["n", 5, 32])],
        [tensor("y", ["n", 5, 16])],
        arrays,
    )
    smoothed, report = float_step(proto, "smoothquant", sentences())
    assert [change.layer for change in report.changed] == ["down"]
    assert difference(proto, smoothed, FRESH) < 1e-5


def behind(before: list[onnx.NodeProto], arrays: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A layer that reads ``h``, which some nodes make of ``x``; two of its channels are outlier."""
    rng = np.random.default_rng(8)
    w = (rng.standard_normal((32, 16)) * 0.2).astype(np.float32)
    w[[3, 17]] *= 0.05
    return model(
        [*before, node("MatMul", ["h", "w"], ["y"], "m")],
        [tensor("x", ["n", 5, 32])],
        [tensor("y", ["n", 5, 16])],
        {**arrays, "w": w},
        opset=23,
    )


def outlier() -> np.ndarray:
    gamma = np.ones(32, np.float32)
    gamma[[3, 17]] = 40
    return gamma


@pytest.mark.parametrize("kind", ["RMSNormalization", "constant factor", "written-out norm", "linear layer"])
def test_factors_go_into_what_comes_before(kind: str) -> None:
    rng = np.random.default_rng(2)
    match kind:
        case "RMSNormalization":
            before, arrays = [node(kind, ["x", "g"], ["h"], "norm", axis=-1)], {"g": outlier()}
        case "constant factor":
            before, arrays = [node("Mul", ["x", "g"], ["h"], "mul")], {"g": outlier()}
        case "written-out norm":
            before = [
                node("Mul", ["x", "x"], ["squares"], "squares"),
                node("ReduceMean", ["squares", "axes"], ["mean"], "mean"),
                node("Sqrt", ["mean"], ["root"], "root"),
                node("Div", ["x", "root"], ["normal"], "div"),
                node("Mul", ["normal", "g"], ["h"], "scale"),
            ]
            arrays = {"g": outlier(), "axes": np.int64([-1])}
        case _:
            before = [node("MatMul", ["x", "w0"], ["h"], "first")]
            arrays = {"w0": (rng.standard_normal((32, 32)) * 0.2).astype(np.float32) * outlier()}
    proto = behind(before, arrays)
    smoothed, report = float_step(proto, "smoothquant", sentences())
    assert [change.layer for change in report.changed] == ["m"]
    assert op_types(smoothed) == op_types(proto)
    assert difference(proto, smoothed, FRESH) < 1e-5


def test_every_group_of_layers_has_an_alpha_of_its_own() -> None:
    _, report = float_step(outlier_block(), "smoothquant", sentences())
    assert len({change.what.partition(",")[0] for change in report.changed}) == 2


def test_weights_shared_by_two_layers_are_left_alone() -> None:
    arrays = {"g": np.ones(16, np.float32), "w": np.eye(16, dtype=np.float32)}
    proto = model(
        [
            node("LayerNormalization", ["x", "g"], ["h"], "norm", axis=-1),
            node("MatMul", ["h", "w"], ["a"], "m0"),
            node("MatMul", ["a", "w"], ["y"], "m1"),
        ],
        [tensor("x", ["n", 5, 16])],
        [tensor("y", ["n", 5, 16])],
        arrays,
    )
    samples = [{"x": f["x"][..., :16]} for f in sentences()]
    _, report = float_step(proto, "smoothquant", samples)
    assert report.refused and all("shared" in r.reason for r in report.refused)


def test_factors_behind_attention_go_into_the_layer_that_makes_its_values() -> None:
    rng = np.random.default_rng(6)
    outlier = np.ones(16, np.float32)
    outlier[[2, 9]] = 50
    arrays = {
        "wv": (rng.standard_normal((32, 16)) * 0.2 * outlier).astype(np.float32),
        "bv": rng.standard_normal(16).astype(np.float32),
        "wo": (rng.standard_normal((16, 24)) / outlier[:, None]).astype(np.float32),
        "split": np.int64([0, 0, 4, 4]),
        "join": np.int64([0, 0, 16]),
    }
    nodes = [
        node("MatMul", ["x", "wv"], ["v0"], "v"),
        node("Add", ["v0", "bv"], ["v1"], "bias"),
        node("Reshape", ["v1", "split"], ["v2"], "heads"),
        node("Transpose", ["v2"], ["v3"], "turn", perm=[0, 2, 1, 3]),
        node("Softmax", ["scores"], ["p"], "softmax"),
        node("MatMul", ["p", "v3"], ["m"], "mix"),
        node("Transpose", ["m"], ["m1"], "turn_back", perm=[0, 2, 1, 3]),
        node("Reshape", ["m1", "join"], ["m2"], "joined"),
        node("MatMul", ["m2", "wo"], ["y"], "o"),
    ]
    inputs = [tensor("x", [1, 5, 32]), tensor("scores", [1, 4, 5, 5])]
    proto = model(nodes, inputs, [tensor("y", [1, 5, 24])], arrays)
    samples = [{**f, "scores": rng.standard_normal((1, 4, 5, 5)).astype(np.float32)} for f in sentences()]
    smoothed, report = float_step(proto, "smoothquant", samples)
    assert {c.layer: c.what for c in report.changed}["o"].endswith("folded into bias")
    assert difference(proto, smoothed, samples) < 1e-5
    assert op_types(smoothed) == op_types(proto)


DIRECTIONS = np.linalg.qr(np.random.default_rng(11).standard_normal((32, 32)))[0]


def rarely_firing(samples: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Words that each make one of 32 units fire; a sample has five."""
    rng = np.random.default_rng(seed)
    words = 3 * DIRECTIONS[rng.integers(0, 32, (samples, 5))]
    return [{"x": (word[None] + rng.standard_normal((1, 5, 32)) * 0.05).astype(np.float32)} for word in words]


def sparse_units() -> onnx.ModelProto:
    """Units that fire for one direction and are near 0.2 otherwise, and two that are always large."""
    rng = np.random.default_rng(11)
    w1 = np.concatenate([DIRECTIONS.T, np.zeros((32, 2))], axis=1).astype(np.float32)
    b1 = np.full(34, 0.2, np.float32)
    b1[32:] = 30.0
    w2 = (rng.standard_normal((34, 24)) * 0.2).astype(np.float32)
    w2[32:] *= 0.05
    return model(
        [
            node("MatMul", ["x", "w1"], ["m"], "first"),
            node("Add", ["m", "b1"], ["a"], "bias"),
            node("Relu", ["a"], ["h"], "relu"),
            node("MatMul", ["h", "w2"], ["y"], "second"),
        ],
        [tensor("x", ["n", 5, 32])],
        [tensor("y", ["n", 5, 24])],
        {"w1": w1, "b1": b1, "w2": w2},
    )


@pytest.mark.parametrize("count", [8, 12, 24])
def test_units_that_were_quiet_in_all_samples_do_not_leave_the_range_of_new_ones(count: int) -> None:
    samples, fresh = rarely_firing(count, seed=1), rarely_firing(40, seed=2)
    plain = error(sparse_units(), samples, fresh, octavo.W8A8)
    smoothed = error(sparse_units(), samples, fresh, octavo.W8A8.but(steps=("smoothquant",)))
    assert smoothed < 0.2 * plain
