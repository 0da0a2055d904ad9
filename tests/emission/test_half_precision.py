"""16-bit floats: what is computed in them, what is only stored, and what stays float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto

import octavo
from emission.models import Array, normal
from octavo.core.plan import HalfCompute, HalfStorage, Plan
from octavo.core.recipe import FloatType
from octavo.errors import RecipeError
from octavo.model.files.io import to_proto
from octavo.model.runtime.session import Session
from octavo.reporting.model_card import model_card
from octavo.reporting.op_tables import datasheet
from octavo.targets import target


def linear(weight: Array, **more: Any) -> onnx.ModelProto:
    """One linear layer."""
    nodes = [node("MatMul", ["x", "w"], ["y"], "layer")]
    return model(nodes, [tensor("x", (2, weight.shape[0]))], [tensor("y", None)], {"w": weight}, **more)


def chain(nodes: list[onnx.NodeProto], arrays: dict[str, Any], x: tuple[int, ...]) -> onnx.ModelProto:
    """Nodes from x to y."""
    return model(nodes, [tensor("x", x)], [tensor("y", None)], arrays)


def converted(source: onnx.ModelProto, data: Any = None, **more: Any) -> octavo.Result:
    """The model in float16, computed in unless said otherwise."""
    return octavo.quantize(source, data, **{"float_type": "fp16:compute", **more})


def half(result: octavo.Result) -> HalfCompute:
    """What is computed in 16 bits."""
    assert isinstance(result.plan.half, HalfCompute)
    return result.plan.half


def decibels(source: onnx.ModelProto, result: octavo.Result, feeds: dict[str, Array]) -> float:
    """How close the results of both models are."""
    float_session, session = (Session.open(one) for one in (source.SerializeToString(), result.model))
    due, found = (next(iter(one.run(feeds).values())).astype(np.float64) for one in (float_session, session))
    assert np.all(np.isfinite(found))
    noise = float(np.sum((due - found) ** 2))
    return float("inf") if not noise else 10 * np.log10(float(np.sum(due**2)) / noise)


def initializer_types(result: octavo.Result) -> dict[str, int]:
    """Element types of the initializers."""
    return {one.name: one.data_type for one in to_proto(result.model).graph.initializer}


def test_computing_in_float16_halves_the_weights_and_keeps_inputs_and_outputs(tmp_path: Path) -> None:
    source = linear(normal(64, 64))
    result = converted(source, output=tmp_path / "h.onnx")
    written = onnx.load(tmp_path / "h.onnx")
    assert half(result).nodes == ("layer",)
    ends = (*written.graph.input, *written.graph.output)
    assert [(one.name, one.type.tensor_type.elem_type) for one in ends] == [("x", 1), ("y", 1)]
    assert [one.data_type for one in written.graph.initializer] == [TensorProto.FLOAT16]
    assert result.bytes == result.float_bytes / 2
    assert decibels(source, result, {"x": normal(2, 64)}) > 60


def test_io_half_changes_the_types_of_inputs_and_outputs() -> None:
    source = chain([node("Relu", ["x"], ["h"], "r"), node("Neg", ["h"], ["y"], "n")], {}, (2, 4))
    written = to_proto(converted(source, io="half").model)
    ends = (*written.graph.input, *written.graph.output)
    assert [(one.name, one.type.tensor_type.elem_type) for one in ends] == [("x", 10), ("y", 10)]
    assert [one.op_type for one in written.graph.node if one.op_type != "Cast"] == ["Relu", "Neg"]
    x = normal(2, 4).astype(np.float16)
    found = Session.open(converted(source, io="half").model).run({"x": x})["y"]
    np.testing.assert_array_equal(found, -np.maximum(x, 0))


def test_storage_restores_weights_by_a_cast_and_computes_in_float32() -> None:
    weight = normal(64, 32)
    source = linear(weight)
    result = octavo.quantize(source, float_type="fp16")  # ort-cpu has no float16 kernels
    assert isinstance(result.plan.half, HalfStorage)
    assert initializer_types(result) == {"w": TensorProto.FLOAT16}
    x = normal(2, 64)
    found = Session.open(result.model).run({"x": x})["y"]
    np.testing.assert_allclose(found, x @ weight.astype(np.float16).astype(np.float32), rtol=1e-5, atol=1e-5)


def test_the_target_decides_between_computing_and_storing() -> None:
    source = linear(normal(64, 64))
    assert isinstance(octavo.quantize(source, float_type="fp16", target="ort-cuda").plan.half, HalfCompute)
    assert isinstance(octavo.quantize(source, float_type="fp16", target="ort-cpu").plan.half, HalfStorage)


def test_a_weight_beyond_the_range_is_never_written_as_infinity() -> None:
    weight = normal(64, 64)
    weight[0, 0] = 1e6
    source = linear(weight)
    result = converted(source)
    assert "beyond the range" in half(result).kept["layer"]
    assert initializer_types(result) == {"w": TensorProto.FLOAT}
    stored = octavo.quantize(source, float_type="fp16").plan.half
    assert isinstance(stored, HalfStorage)
    assert stored.weights == () and "beyond the range" in stored.kept["w"]


def test_a_constant_that_would_round_to_zero_keeps_its_reader_in_float32() -> None:
    nodes = [node("Add", ["x", "eps"], ["h"], "add"), node("Div", ["one", "h"], ["y"], "div")]
    source = chain(nodes, {"eps": np.float32(1e-12), "one": np.float32(1e-9)}, (4,))
    kept = half(converted(source)).kept
    assert "too small" in kept["add"]
    assert "too small" in kept["div"]
    assert decibels(source, converted(source), {"x": np.zeros(4, np.float32)}) > 60


def test_a_mask_that_reaches_a_softmax_is_raised_into_the_range() -> None:
    mask = np.triu(np.full((8, 8), np.finfo(np.float32).min, np.float32), 1)
    nodes = [node("Add", ["x", "mask"], ["s"], "add"), node("Softmax", ["s"], ["y"], "soft", axis=-1)]
    source = chain(nodes, {"mask": mask}, (2, 8, 8))
    result = converted(source)
    assert half(result).masks == ("mask",)
    assert half(result).nodes == ("add", "soft")
    assert decibels(source, result, {"x": normal(2, 8, 8)}) > 50


def test_calibration_keeps_nodes_in_float32_whose_values_leave_the_range() -> None:
    nodes = [
        node("Mul", ["x", "big"], ["h"], "up"),
        node("Mul", ["h", "small"], ["m"], "down"),
        node("Relu", ["m"], ["y"], "relu"),
    ]
    source = chain(nodes, {"big": np.float32(6e4), "small": np.float32(1e-3)}, (2, 8))
    data = [{"x": normal(2, 8)} for _ in range(2)]
    result = converted(source, data)
    assert set(half(result).kept) == {"up", "down"}
    assert "in calibration" in half(result).kept["up"]
    assert half(result).nodes == ("relu",)
    assert decibels(source, result, {"x": normal(2, 8)}) > 60


def test_without_data_a_normalization_that_is_written_out_stays_float32() -> None:
    nodes = [
        node("Pow", ["x", "two"], ["p"], "pow"),
        node("ReduceMean", ["p"], ["m"], "mean", axes=[-1]),
        node("Add", ["m", "eps"], ["a"], "add"),
        node("Sqrt", ["a"], ["r"], "sqrt"),
        node("Div", ["x", "r"], ["d"], "div"),
        node("Mul", ["d", "g"], ["y"], "gain"),
    ]
    arrays = {"two": np.float32(2), "eps": np.float32(1e-6), "g": normal(8)}
    source = chain(nodes, arrays, (2, 8))
    assert set(half(converted(source)).kept) == {"pow", "mean", "add", "sqrt", "div"}
    assert decibels(source, converted(source), {"x": 1e3 * normal(2, 8)}) > 50


def test_sizes_and_indices_stay_exact() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Cast", ["s"], ["f"], "float", to=TensorProto.FLOAT),
        node("Mul", ["f", "two"], ["d"], "double"),
        node("Cast", ["d"], ["i"], "int", to=TensorProto.INT64),
        node("Expand", ["x", "s"], ["e"], "expand"),
        node("ConstantOfShape", ["i"], ["c"], "fill"),
        node("ReduceSum", ["c"], ["n"], "count", keepdims=0),
        node("Add", ["e", "n"], ["y"], "add"),
    ]
    source = chain(nodes, {"two": np.float32(1.0)}, (3, 2049))
    found = half(converted(source, prepare=None)).kept
    assert "exact" in found["double"]


def test_resize_keeps_its_scales_in_float32() -> None:
    nodes = [node("Resize", ["x", "", "scales"], ["y"], "resize", mode="nearest")]
    source = chain(nodes, {"scales": np.array([1, 1, 2, 2], np.float32)}, (1, 3, 4, 4))
    result = converted(source)
    assert half(result).nodes == ("resize",)
    assert initializer_types(result) == {"scales": TensorProto.FLOAT}
    assert decibels(source, result, {"x": normal(1, 3, 4, 4)}) > 60


def test_branches_compute_in_float16_and_hand_on_float32() -> None:
    then = graph([node("Mul", ["x", "a"], ["t"], "times")], [], [tensor("t", (2, 4))], {"a": normal(4)})
    other = graph([node("Add", ["x", "b"], ["o"], "plus")], [], [tensor("o", (2, 4))], {"b": normal(4)})
    nodes = [
        node("ReduceMax", ["x"], ["m"], "max", keepdims=0),
        node("Greater", ["m", "zero"], ["c"], "test"),
        node("If", ["c"], ["h"], "if", then_branch=then, else_branch=other),
        node("Relu", ["h"], ["y"], "relu"),
    ]
    source = chain(nodes, {"zero": np.float32(0)}, (2, 4))
    result = converted(source)
    assert {"times", "plus", "relu"} <= set(half(result).nodes)
    assert "if" in half(result).kept
    for sign in (1, -1):
        assert decibels(source, result, {"x": sign * np.abs(normal(2, 4))}) > 60


def test_a_loop_body_computes_in_float16_and_carries_float32() -> None:
    body = graph(
        [
            node("Mul", ["v", "f"], ["w"], "step"),
            node("Identity", ["go"], ["on"], "on"),
        ],
        [tensor("i", (), TensorProto.INT64), tensor("go", (), TensorProto.BOOL), tensor("v", (2, 4))],
        [tensor("on", (), TensorProto.BOOL), tensor("w", (2, 4))],
        {"f": normal(4)},
    )
    nodes = [node("Loop", ["n", "yes", "x"], ["y"], "loop", body=body)]
    source = chain(nodes, {"n": np.int64(3), "yes": np.array(True)}, (2, 4))
    result = converted(source)
    assert "step" in half(result).nodes
    assert decibels(source, result, {"x": normal(2, 4)}) > 50


def test_excluded_nodes_stay_float32() -> None:
    source = chain([node("Relu", ["x"], ["h"], "r"), node("Neg", ["h"], ["y"], "n")], {}, (2, 4))
    assert half(converted(source, exclude="r")).kept == {"r": "excluded"}


def test_float16_goes_beside_int8() -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Erf", ["c"], ["e"], "erf"),
        node("Relu", ["e"], ["y"], "relu"),
    ]
    source = chain(nodes, {"w": normal(8, 8, 3, 3)}, (1, 8, 8, 8))
    data = [{"x": normal(1, 8, 8, 8)} for _ in range(2)]
    result = octavo.quantize(source, data, weights="int8", float_type="fp16:compute")
    assert "conv" in result.plan.nodes
    assert "quantized" in half(result).kept["conv"]
    assert "erf" in half(result).nodes
    assert decibels(source, result, {"x": normal(1, 8, 8, 8)}) > 25


def test_bfloat16_is_stored_with_its_eight_bits() -> None:
    weight = normal(64, 64) * 1e-6  # too small for float16
    source = linear(weight)
    result = octavo.quantize(source, float_type="bf16")
    assert initializer_types(result) == {"w": TensorProto.BFLOAT16}
    assert decibels(source, result, {"x": normal(2, 64)}) > 45


def test_a_plan_with_float16_is_saved_loaded_and_carried_out(tmp_path: Path) -> None:
    source = linear(normal(64, 64))
    first = converted(source)
    first.plan.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.half == first.plan.half
    again = octavo.quantize(source, plan=plan)
    assert to_proto(again.model).graph == to_proto(first.model).graph


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"float_type": "fp61"}, "fp16"),
        ({"float_type": "fp16:fast"}, ":compute"),
        ({"io": "half"}, "float_type"),
        ({"float_type": "fp16:storage", "io": "half"}, "inputs and outputs"),
        ({"float_type": "fp16:compute", "io": "bf16"}, "not the same"),
        ({"float_type": "fp16:compute", "io": "int8"}, "keep, half, fp16"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(keywords: dict[str, str], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        octavo.quantize(linear(normal(8, 8)), **keywords)


def test_the_summary_says_what_is_in_float16_and_why_the_rest_is_not() -> None:
    weight = normal(64, 64)
    weight[0, 0] = 1e6
    text = str(converted(linear(weight)))
    assert "0 nodes computed in float16" in text
    assert "1 kept in float32" in text and "1e+06" in text


def test_the_summary_says_why_nothing_is_stored() -> None:
    small = converted(linear(normal(8, 8)), float_type="fp16:storage")
    assert "no weight stored in float16: none is large enough" in str(small)


def test_a_dry_run_says_what_would_be_in_float16() -> None:
    plan = octavo.plan(linear(normal(64, 64)), float_type="fp16:compute")
    assert isinstance(plan.half, HalfCompute) and plan.half.nodes == ("layer",)
    assert str(plan).startswith("1 node computed in float16")


def test_an_output_that_would_become_infinite_keeps_its_type_or_is_refused() -> None:
    source = chain([node("Mul", ["x", "big"], ["y"], "up")], {"big": np.float32(6e4)}, (2, 8))
    data = [{"x": 3 + abs(normal(2, 8))}]
    assert half(converted(source, data)).kept.keys() == {"up"}
    with pytest.raises(RecipeError, match="output y reached"):
        converted(source, data, io="fp16")


@pytest.mark.parametrize(
    ("text", "target", "kind", "name"),
    [
        ("fp16", "ort-cpu", HalfStorage, "float16"),
        ("bf16", "ort-cpu", HalfStorage, "bfloat16"),
        ("auto", "ort-cpu", HalfStorage, "float16"),
        ("fp16:compute", "ort-cpu", HalfCompute, "float16"),
        ("auto", "tensorrt", HalfCompute, "float16"),
        ("bf16:storage", "ort-cuda", HalfStorage, "bfloat16"),
    ],
)
def test_recipes_take_the_words_of_the_command_line(
    text: str, target: str, kind: type, name: str, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(
        f"base: W8\nop_types: []\nactivations: null\nstyle: qdq\nhalf: {text}\n"
    )
    recipe = octavo.Recipe.load(tmp_path / "recipe.yaml")
    source = linear(normal(64, 64))
    plain = {"base": "W8", "op_types": [], "activations": None, "style": "qdq", "half": text}
    for given in (recipe, plain):
        half = octavo.quantize(source, recipe=given, target=target).plan.half
        assert isinstance(half, kind) and half.float_type.value == name
    recipe.save(tmp_path / "again.yaml")
    assert octavo.Recipe.load(tmp_path / "again.yaml") == recipe


def test_a_recipe_with_another_float_type_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"half: .*'fp61'.*fp16"):
        octavo.quantize(linear(normal(64, 64)), recipe={"base": "W8", "half": "fp61"})


def test_datasheets_say_what_16_bit_floats_are() -> None:
    sheets = {name: datasheet(target(name))["16-bit floats"] for name in ("ort-cpu", "ort-cuda")}
    assert sheets == {
        "ort-cpu": "weights are stored in them, and restored to float32 at load",
        "ort-cuda": "computed in float16, bfloat16",
    }


def test_logarithms_of_small_numbers_stay_float32_with_what_computes_them() -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "layer"), node("Mul", ["h", "h"], ["power"], "square"),
        node("MatMul", ["power", "mel"], ["bands"], "bands"), node("Max", ["bands", "least"], ["m"], "floor"),
        node("Log", ["m"], ["l"], "log"), node("MatMul", ["l", "v"], ["y"], "after"),
    ]  # fmt: skip
    arrays = {
        "w": normal(64, 64), "mel": np.abs(normal(64, 32)), "v": normal(32, 16), "least": np.float32(1e-12)
    }  # fmt: skip
    source = chain(nodes, arrays, (4, 64))
    quiet = [{"x": np.float32(1e-5) * normal(4, 64)}, {"x": normal(4, 64)}]
    kept = half(converted(source, quiet)).kept
    assert {"log", "floor", "bands", "square"} <= set(kept) and not {"layer", "after"} & set(kept)
    assert "logarithm" in kept["square"] and "logarithm" in kept["bands"]
    assert decibels(source, converted(source, quiet), quiet[0]) > 50
    outliers = [{"x": 1 + 0.1 * np.abs(normal(4, 64))}]
    arrays |= {"w": np.abs(arrays["w"]) / 64, "least": np.float32(1e-3)}
    assert "bands" not in half(converted(chain(nodes, arrays, (4, 64)), outliers)).kept


@pytest.mark.parametrize("more", [{}, {"weights": "int8", "effort": "plain"}], ids=["alone", "beside int8"])
def test_inputs_in_16_bits_are_checked_on_samples_in_32(more: dict[str, Any], tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"], "layer"), node("Erf", ["h"], ["y"], "curve")]
    source = chain(nodes, {"w": normal(64, 64)}, (2, 64))
    data = [{"x": normal(2, 64)} for _ in range(3)]
    path = tmp_path / "half.onnx"
    octavo.quantize(source, data, float_type="fp16:compute", io="fp16", output=path, **more)
    session = Session.open(path)
    found = session.run({"x": data[0]["x"].astype(np.float16)})["y"]
    due = Session.open(source.SerializeToString()).run(data[0])["y"]
    noise = np.sum((found - due) ** 2) / np.sum(due**2)
    assert found.dtype == np.float16 and noise < (0.02 if more else 1e-5)


def test_a_card_of_a_16_bit_model_says_what_it_was_calibrated_with() -> None:
    source = linear(normal(8, 8))
    data = [{"x": normal(2, 8)} for _ in range(3)]
    computed, stored, blind = (
        converted(source, data), converted(source, data, float_type="fp16:storage"), converted(source)
    )  # fmt: skip
    quantized = octavo.quantize(source, data, effort="plain")
    assert computed.fingerprints()["data"] == quantized.fingerprints()["data"] is not None
    for result, due in ((computed, "3 samples, fingerprint"), (stored, "nothing"), (blind, "nothing")):
        card = model_card(result.to_dict(), result.manifest(), model="m", output="h", command="octavo …")
        assert f"| calibrated with | {due}" in card


def test_a_card_of_a_16_bit_model_does_not_speak_of_integers() -> None:
    result = converted(linear(normal(64, 64)))
    manifest = result.manifest()
    card = model_card(result.to_dict(), manifest, model="m.onnx", output="h.onnx", command="octavo …")
    assert "| 16-bit floats | 1 operator computed in float16 |" in card and "A 16-bit copy of" in card
    assert "int8" not in card and "qdq" not in card
    both = octavo.quantize(linear(normal(64, 64)), weights="int8", float_type="fp16")
    card = model_card(both.to_dict(), both.manifest(), model="m.onnx", output="h.onnx", command="octavo …")
    assert "| weights | int8 per channel |" in card and "| 16-bit floats |" in card


# ---- Weights alone: constants that float16 holds exactly


def masked(lowest: float) -> onnx.ModelProto:
    """One linear layer, and a large mask behind it."""
    mask = np.triu(np.full((256, 256), lowest, np.float32), 1)
    nodes = [node("MatMul", ["x", "w"], ["h"], "layer"), node("Add", ["h", "mask"], ["y"])]
    arrays = {"w": normal(64, 256), "mask": mask}
    return model(nodes, [tensor("x", (256, 64))], [tensor("y", None)], arrays)


@pytest.mark.parametrize(("lowest", "stored"), [(-1e4, True), (-3.4e38, False), (-0.1, False)])
def test_weights_alone_come_with_masks_in_float16_where_that_is_exact(lowest, stored):
    result = octavo.quantize(masked(lowest), weights="int4")
    assert (result.plan.half == HalfStorage(FloatType.FLOAT16, ("mask",))) is stored
    assert (initializer_types(result)["mask"] == TensorProto.FLOAT16) is stored
    plain = octavo.emit(masked(lowest), replace(result.plan, half=None), None)
    x = {"x": normal(256, 64)}
    found, due = (Session.open(one.model).run(x)["y"] for one in (result, plain))
    np.testing.assert_array_equal(found, due)


def test_8_bit_activations_leave_masks_as_they_are():
    assert octavo.quantize(masked(-1e4), recipe="W8").plan.half is None
