"""Weights in blocks through recipe, keywords and plan: what is written is run, and compared with float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantization.weight_graphs import stored_weight, weights

import octavo
from octavo.core.plan import Constant, Key, Plan
from octavo.core.qtypes import INT8
from octavo.core.recipe import WeightOnly
from octavo.errors import DataError, RecipeError
from octavo.model.files import io
from octavo.model.runtime.session import Session

ALGORITHMS = ["rtn", "furthest", "hqq", "k-quant", "importance", "gptq"]


def two_layers(dtype: Any = np.float32) -> onnx.ModelProto:
    """A table, a hidden layer, and a head that makes logits."""
    nodes = [
        node("Gather", ["t", "ids"], ["e"], "embed"),
        node("MatMul", ["e", "w0"], ["h"], "hidden"),
        node("Tanh", ["h"], ["a"], "act"),
        node("MatMul", ["a", "w1"], ["logits"], "head"),
    ]
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    arrays = {"t": weights(40, 64, seed=1), "w0": weights(64, 96, seed=2), "w1": weights(96, 40, seed=3)}
    return model(
        nodes,
        [tensor("ids", ["n"], onnx.TensorProto.INT64)],
        [tensor("logits", ["n", 40], kind)],
        {name: array.astype(dtype) for name, array in arrays.items()},
    )


def texts(count: int = 4) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [{"ids": random.integers(0, 40, 24)} for _ in range(count)]


def run(made: Any, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(next(iter(Session.open(made).run(feeds).values())))


def op_types(result: octavo.Result) -> list[str]:
    return [n.op_type for n in result.model.graph]


@pytest.mark.parametrize("style", ["qoperator", "qdq"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_written_in_both_styles_and_runs(name: str, style: str) -> None:
    proto = two_layers()
    kind = "uint4" if name == "hqq" else "int4"
    result = octavo.quantize(
        proto, texts(), weights=kind, per="block:32", algorithm=name, style=style, head="same"
    )
    wanted = "MatMulNBits" if style == "qoperator" else "DequantizeLinear"
    assert op_types(result).count(wanted) == 2
    entry = result.plan.entries[Key("w0", "hidden")]
    assert isinstance(entry, Constant)
    assert entry.algorithm == name
    want, got = run(io.load(proto), texts(1)[0]), run(result.model, texts(1)[0])
    assert np.linalg.norm(got - want) < 0.3 * np.linalg.norm(want)


def test_few_bits_need_no_data_and_keep_the_head_at_8_bits() -> None:
    result = octavo.quantize(two_layers(), weights="int4")
    attributes = {
        n.name: {name: a.value for name, a in n.attributes.items()}
        for n in result.model.graph
        if n.op_type == "MatMulNBits"
    }
    assert {name: (a["bits"], a["block_size"], a["accuracy_level"]) for name, a in attributes.items()} == {
        "hidden_Q4": (4, 32, 4),
        "head_Q8": (8, 32, 4),
    }
    assert result.recipe is not None
    assert result.recipe.weight_only.algorithm.startswith("k-quant")
    assert str(result.recipe.weights.qtype) == "uint4"
    symmetric = octavo.quantize(two_layers(), weights="int4", symmetric=True)
    assert all(len(n.inputs) == 3 for n in symmetric.model.graph if n.op_type == "MatMulNBits")


def test_with_data_the_default_is_importance_and_it_brings_outputs_closer() -> None:
    proto, data = two_layers(), texts(16)
    table = onnx.numpy_helper.to_array(proto.graph.initializer[0]).copy()
    table[:, :8] *= 20  # inputs that count more than the others
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(table, "t"))
    made = {name: octavo.quantize(proto, data, weights="int4", algorithm=name) for name in ("rtn", "k-quant")}
    made["importance"] = octavo.quantize(proto, data, weights="int4")
    assert made["importance"].recipe is not None
    assert made["importance"].recipe.weight_only.algorithm == "importance"
    x = table[np.concatenate([d["ids"] for d in data])].astype(np.float64)
    w0 = onnx.numpy_helper.to_array(proto.graph.initializer[1]).astype(np.float64)
    errors = {}
    for name, result in made.items():
        written = io.to_proto(result.model)
        hidden = next(n for n in written.graph.node if n.name == "hidden_Q4")
        errors[name] = np.linalg.norm(x @ (stored_weight(written, hidden) - w0))
    assert errors["importance"] < 0.8 * errors["k-quant"]
    assert errors["importance"] < 0.8 * errors["rtn"]


def test_only_layers_of_4_bits_or_of_the_recipes_bits_are_computed_in_float() -> None:
    def levels(weights: str) -> dict[str, bool]:
        made = octavo.quantize(two_layers(), weights=weights, per="block:32", accuracy_level=0)
        return {n.name: "accuracy_level" not in n.attributes for n in made.model.graph if "_Q" in n.name}

    assert levels("int4") == {"hidden_Q4": True, "head_Q8": False}
    assert levels("int8") == {"hidden_Q8": True, "head_Q8": True}


def test_layers_head_and_embeddings_have_bits_of_their_own() -> None:
    result = octavo.quantize(
        two_layers(), weights="uint4", head=2, embeddings=8, layers={"hid*": "8/64"}, accuracy_level=0
    )
    found = {n.name: n for n in result.model.graph}
    assert [found["head_Q2"].attributes[a].value for a in ("bits", "block_size")] == [2, 32]
    assert [found["hidden_Q8"].attributes[a].value for a in ("bits", "block_size")] == [8, 64]
    assert found["embed_Q8"].op_type == "GatherBlockQuantized"
    assert found["head_Q2"].attributes["accuracy_level"].value == 4  # no kernel computes 2 bits in float
    left = octavo.quantize(two_layers(), weights="int4", layers={"head": "float"})
    assert op_types(left) == ["Gather", "MatMulNBits", "Tanh", "MatMul"]
    with pytest.raises(RecipeError, match="matches no node"):
        octavo.quantize(two_layers(), weights="int4", layers={"heed": 8})


def test_a_recipe_file_and_a_plan_file_give_the_same_model(tmp_path: Path) -> None:
    data = texts()
    direct = octavo.quantize(two_layers(), data, weights="int4", algorithm="gptq:damping=0.05")
    assert direct.recipe is not None
    direct.recipe.save(tmp_path / "recipe.yaml")
    by_recipe = octavo.quantize(two_layers(), data, recipe=tmp_path / "recipe.yaml")
    direct.plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == direct.plan
    by_plan = octavo.quantize(two_layers(), data, plan=tmp_path / "plan.json")
    first = io.to_proto(direct.model).graph.SerializeToString()
    assert io.to_proto(by_recipe.model).graph.SerializeToString() == first
    assert io.to_proto(by_plan.model).graph.SerializeToString() == first


def test_statistics_take_the_place_of_data(tmp_path: Path) -> None:
    plan = octavo.plan(two_layers(), recipe=octavo.W4.but(weight_only=WeightOnly("importance")))
    stats = octavo.calibrate(two_layers(), plan, texts(), output=tmp_path / "s.stats")
    direct = octavo.quantize(two_layers(), texts(), plan=plan)
    again = octavo.quantize(two_layers(), plan=plan, stats=octavo.load_stats(tmp_path / "s.stats"))
    assert stats.samples == 4
    assert io.to_proto(direct.model).SerializeToString() == io.to_proto(again.model).SerializeToString()


def test_algorithms_that_need_data_say_so() -> None:
    with pytest.raises(DataError, match="calibration data"):
        octavo.quantize(two_layers(), weights="int4", algorithm="gptq")
    with pytest.raises(RecipeError, match="did you mean 'gptq'"):
        octavo.quantize(two_layers(), weights="int4", algorithm="gtpq")
    with pytest.raises(RecipeError, match="no option 'dampling'"):
        octavo.quantize(two_layers(), weights="int4", algorithm="gptq:dampling=1")


def test_targets_without_the_runtimes_operators_get_blocks_in_standard_onnx() -> None:
    result = octavo.quantize(two_layers(), weights="int4", target="tensorrt", verify=False)
    assert op_types(result) == ["Gather", "DequantizeLinear", "MatMul", "Tanh", "DequantizeLinear", "MatMul"]


def test_a_gemm_with_a_bias_becomes_matmulnbits_and_one_that_it_can_not_express_keeps_its_operator() -> None:
    w, b = weights(16, 64), weights(16)
    for transposed, alpha, wanted in ((1, 1.0, "MatMulNBits"), (0, 1.0, "MatMulNBits"), (1, 0.5, "Gemm")):
        proto = model(
            [node("Gemm", ["x", "w", "b"], ["y"], "g", transB=transposed, alpha=alpha)],
            [tensor("x", ["n", 64])],
            [tensor("y", ["n", 16])],
            {"w": w if transposed else np.ascontiguousarray(w.T), "b": b},
        )
        x = weights(3, 64, seed=9)
        result = octavo.quantize(proto, weights="int4", head=8)
        assert op_types(result)[-1] == wanted
        want = alpha * (x.astype(np.float64) @ w.T) + b
        assert np.abs(run(result.model, {"x": x}) - want).max() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("dtype", [np.float16], ids=["float16"])
def test_narrow_weights_are_taken(dtype: Any) -> None:
    proto = two_layers(dtype)
    result = octavo.quantize(proto, texts(), weights="int4", head="same")
    assert op_types(result).count("MatMulNBits") == 2
    want = run(io.load(proto), texts(1)[0]).astype(np.float64)
    got = run(result.model, texts(1)[0]).astype(np.float64)
    assert np.linalg.norm(got - want) < 0.3 * np.linalg.norm(want)


def test_presets_mean_weights_alone() -> None:
    for preset in ("W4", "W4A16", "w4a16"):
        result = octavo.quantize(two_layers(), recipe=preset)
        assert op_types(result).count("MatMulNBits") == 2
    assert octavo.W4A16.activations is None
    assert octavo.W4.but(weights=octavo.Scheme(INT8, octavo.PerBlock(64), symmetric=True)).is_weight_only


def test_operators_that_the_checker_does_not_know_are_left_to_the_runtime(tmp_path: Path) -> None:
    nodes = [
        node("SimplifiedLayerNormalization", ["x", "g"], ["n"], "norm", axis=-1, epsilon=1e-5),
        node("MatMul", ["n", "w"], ["y"], "mm"),
    ]
    proto = model(
        nodes,
        [tensor("x", ["n", 64])],
        [tensor("y", ["n", 32])],
        {"g": np.ones(64, np.float32), "w": weights(64, 32)},
    )
    result = octavo.quantize(proto, weights="int4", output=tmp_path / "q.onnx")
    assert op_types(result) == ["SimplifiedLayerNormalization", "MatMulNBits"]
    assert (tmp_path / "q.onnx").exists()


def test_settings_of_blocks_beside_quantized_activations_are_refused() -> None:
    with pytest.raises(RecipeError, match="algorithm: these are settings of weights in blocks"):
        octavo.quantize(two_layers(), texts(), weights="int8", activations="uint8", algorithm="gptq")
