"""Weights stored as int8 that run as float: their numbers and scales, and what the runtime makes of them."""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import graph, model, node, tensor
from onnx import numpy_helper

import octavo
from emission.models import Array, feeds, normal
from octavo.core.plan import Plan
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import COMPRESSED
from octavo.errors import ModelError, RecipeError, TableError
from octavo.model.files.io import load, to_proto
from octavo.model.runtime.session import Session, optimized
from octavo.reporting.html import details, report
from octavo.reporting.summary import markdown

BODY = onnx.AttributeProto.GRAPH


def one(op: str, arrays: dict[str, Array], x: tuple[int, ...], **more: Any) -> onnx.ModelProto:
    """A model of one node."""
    nodes = [node(op, ["x", *arrays], ["y"], "layer", **more)]
    return model(nodes, [tensor("x", x)], [tensor("y", None)], arrays)


def recurrent(op: str, rows: int) -> onnx.ModelProto:
    return one(op, {"w": normal(1, rows, 24), "r": normal(1, rows, 16)}, (4, 1, 24), hidden_size=16)


def expected(weight: Array, over: tuple[int, ...], block: int | None = None) -> Array:
    """The restored weight, in float64: integers of −127 … 127 times one scale along the axes left.

    With a block there is a scale for each run of so many values along the one axis given.
    """
    wide = weight.astype(np.float64)
    if block is not None:
        wide = np.stack(np.split(wide, wide.shape[over[0]] // block, axis=over[0]))
        over = (over[0] + 1,)
    scale = (np.abs(wide).max(axis=over, keepdims=True) / 127).astype(np.float32).astype(np.float64)
    found: Array = np.rint(wide / scale) * scale
    return found if block is None else np.concatenate(list(found), axis=over[0] - 1)


def restored(proto: onnx.ModelProto, name: str) -> Array:
    """What Cast, Mul and Reshape make of the stored integers, by the file alone."""
    stored = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    integers, scale = stored[f"{name}_quantized"], stored[f"{name}_scale"]
    assert integers.dtype == np.int8
    product = integers.astype(np.float64) * scale.astype(np.float64)
    return product.reshape(stored[f"{name}_dims"]) if f"{name}_dims" in stored else product


def op_types(proto: onnx.ModelProto) -> Counter[str]:
    """All nodes, those of bodies as well."""

    def walk(part: onnx.GraphProto) -> list[str]:
        inner = [a.g for one in part.node for a in one.attribute if a.type == BODY]
        return [one.op_type for one in part.node] + [op for body in inner for op in walk(body)]

    return Counter(walk(proto.graph))


NAMES_ARE_ONCE = tuple(map(int, version("onnxruntime").split(".")[:2])) >= (1, 31)
"""Before, the runtime wrote what it has folded in two branches under one name, which is no valid model."""


def what_runs(source: ir.Model) -> Counter[str]:
    """The operators that the runtime is left with at its first level."""
    return op_types(to_proto(optimized(source, "basic")))


CASES = {
    "Conv": (one("Conv", {"w": normal(16, 8, 3, 3), "b": normal(16)}, (1, 8, 6, 6)), (1, 2, 3), None),
    "wide Conv": (one("Conv", {"w": normal(16, 96, 3, 3)}, (1, 96, 6, 6)), (1,), 32),
    "ConvTranspose": (one("ConvTranspose", {"w": normal(8, 16, 3, 3)}, (1, 8, 4, 4)), (0, 2, 3), None),
    "Gemm": (one("Gemm", {"w": normal(48, 32)}, (2, 48)), (0,), 24),
    "Gemm transB": (one("Gemm", {"w": normal(32, 48)}, (2, 48), transB=1), (1,), 24),
    "MatMul": (one("MatMul", {"w": normal(48, 32)}, (3, 2, 48)), (0,), 24),
    "stack": (one("MatMul", {"w": normal(3, 48, 16)}, (3, 2, 48)), (1,), 24),
    "LSTM": (
        one("LSTM", {"w": normal(1, 64, 24), "r": normal(1, 64, 16)}, (4, 1, 24), hidden_size=16),
        (2,),
        None,
    ),
    "GRU": (
        one("GRU", {"w": normal(1, 48, 24), "r": normal(1, 48, 16)}, (4, 1, 24), hidden_size=16),
        (2,),
        None,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_runtime_computes_with_integers_times_their_scales(case: str) -> None:
    source, over, block = CASES[case]
    arrays = {i.name: numpy_helper.to_array(i) for i in source.graph.initializer}
    result = octavo.quantize(source, recipe=COMPRESSED)
    written = to_proto(result.model)
    changed = onnx.ModelProto()
    changed.CopyFrom(source)
    for initializer in changed.graph.initializer:
        array = arrays[initializer.name]
        if initializer.name in result.plan.compressed:
            wanted = expected(array, over, block)
            np.testing.assert_allclose(restored(written, initializer.name), wanted, rtol=1e-6)
            initializer.CopyFrom(numpy_helper.from_array(wanted.astype(np.float32), initializer.name))
    large = {name for name, array in arrays.items() if array.size >= 1024 and array.ndim > 1}
    assert set(result.plan.compressed) == large
    sample = feeds([d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim], count=1)[0]
    float_model, stored = Session.open(changed.SerializeToString()), Session.open(result.model)
    for name, value in float_model.run(sample).items():
        np.testing.assert_allclose(stored.run(sample)[name], value, rtol=1e-5, atol=1e-5)


def test_what_the_runtime_loads_is_the_float_model() -> None:
    source, *_ = CASES["Conv"]
    result = octavo.quantize(source, recipe=COMPRESSED)
    assert op_types(to_proto(result.model)) == {"Conv": 1, "Cast": 1, "Mul": 1}
    assert what_runs(result.model) == what_runs(load(source)) == {"Conv": 1}


def test_the_file_has_a_quarter_of_the_weights(tmp_path: Path) -> None:
    source = one("MatMul", {"w": normal(256, 256)}, (1, 256))
    result = octavo.quantize(source, recipe=COMPRESSED, output=tmp_path / "small.onnx")
    assert (tmp_path / "small.onnx").stat().st_size < 0.29 * source.ByteSize()
    assert result.bytes < 0.285 * result.float_bytes
    (entry,) = result.plan.compressed.values()
    assert entry.saves == result.float_bytes - result.bytes + 2 * 8  # and the shape behind the product


def test_a_tied_weight_is_stored_once() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "lookup"),
        node("Gemm", ["e", "table"], ["y"], "head", transB=1),
    ]
    ids = tensor("ids", [4], onnx.TensorProto.INT64)
    result = octavo.quantize(
        model(nodes, [ids], [tensor("y", None)], {"table": normal(64, 32)}), recipe=COMPRESSED
    )
    assert list(result.plan.compressed) == ["table"]
    assert op_types(to_proto(result.model)) == {"Cast": 1, "Mul": 1, "Gather": 1, "Gemm": 1}
    table, sample = expected(normal(64, 32), (1,)), np.array([3, 1, 4, 1])
    found = Session.open(result.model).run({"ids": sample})["y"]
    np.testing.assert_allclose(found, table[sample] @ table.T, rtol=1e-4, atol=1e-4)


def test_a_large_weight_read_through_a_transpose_is_stored_once() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "lookup"),
        node("Transpose", ["table"], ["turned"], "turn", perm=[1, 0]),
        node("MatMul", ["e", "turned"], ["y"], "head"),
    ]
    ids, arrays = tensor("ids", [1, 4], onnx.TensorProto.INT64), {"table": normal(1024, 260)}
    result = octavo.quantize(model(nodes, [ids], [tensor("y", None)], arrays), recipe=COMPRESSED)
    assert list(result.plan.compressed) == ["table"]
    table = arrays["table"].astype(np.float64)
    least = np.abs(expected(table, (1,), 26) - table)
    lost = np.abs(restored(to_proto(result.model), "table") - table)
    np.testing.assert_allclose(lost, least, atol=1e-6)  # halves may be rounded either way


def branches() -> onnx.ModelProto:
    """An If whose branches hold a weight each: as an initializer, and as a Constant."""
    held = numpy_helper.from_array(normal(40, 32, seed=2), "held")
    out = [tensor("z", None)]
    then = graph([node("MatMul", ["x", "a"], ["z"], "yes")], [], out, {"a": normal(40, 32, seed=1)}, "then")
    other = [node("Constant", [], ["c"], value=held), node("MatMul", ["x", "c"], ["z"], "no")]
    nodes = [
        node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=graph(other, [], out, name="else"))
    ]
    inputs = [tensor("x", [2, 40]), tensor("flag", [], onnx.TensorProto.BOOL)]
    return model(nodes, inputs, [tensor("y", None)])


@pytest.mark.parametrize("flag", [True, False])
def test_weights_of_branches_are_stored_and_folded_too(flag: bool) -> None:
    source = branches()
    result = octavo.quantize(source, recipe=COMPRESSED)
    assert len(result.plan.compressed) == 2
    if NAMES_ARE_ONCE:
        assert what_runs(result.model) == {"If": 1, "MatMul": 2}
    x = normal(2, 40, seed=3)
    wanted = x.astype(np.float64) @ expected(normal(40, 32, seed=1 if flag else 2), (0,))
    found = Session.open(result.model).run({"x": x, "flag": np.array(flag)})["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def conv_and_linear() -> onnx.ModelProto:
    """A Conv that stays float where ranges are found at run time, and a linear layer that does not."""
    arrays = {"k": normal(16, 8, 3, 3), "w": normal(16, 64, seed=1)}
    nodes = [
        node("Conv", ["x", "k"], ["c"], "conv"),
        node("GlobalAveragePool", ["c"], ["p"], "pool"),
        node("Flatten", ["p"], ["f"], "flat"),
        node("MatMul", ["f", "w"], ["y"], "linear"),
    ]
    return model(nodes, [tensor("x", [1, 8, 6, 6])], [tensor("y", None)], arrays)


def test_beside_a_dynamic_layer_the_rest_is_stored() -> None:
    result = octavo.quantize(conv_and_linear(), recipe=octavo.W8.but(compressed=INT8))
    assert list(result.plan.nodes) == ["linear"]
    assert list(result.plan.compressed) == ["k"]
    assert "1 weight compressed to int8" in result.summary()
    assert what_runs(result.model)["Conv"] == 1
    assert result.bytes < 0.35 * result.float_bytes


def test_beside_a_static_layer_the_rest_is_stored() -> None:
    recipe = octavo.W8A8.but(compressed=INT8, op_types=("MatMul",))
    data = feeds((1, 8, 6, 6))
    result = octavo.quantize(conv_and_linear(), data, recipe=recipe)
    assert list(result.plan.compressed) == ["k"]
    plain = octavo.quantize(conv_and_linear(), data, recipe=recipe.but(compressed=None))
    assert not plain.plan.compressed
    sample = data[0]
    found, wanted = Session.open(result.model).run(sample)["y"], Session.open(plain.model).run(sample)["y"]
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()


def test_a_plan_with_stored_weights_is_read_back_and_carried_out(tmp_path: Path) -> None:
    plan = octavo.plan(conv_and_linear(), octavo.W8.but(compressed=INT8))
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert list(octavo.quantize(conv_and_linear(), plan=again).plan.compressed) == ["k"]


@pytest.mark.parametrize(("name", "words"), [("kk", "does not have"), ("c", "the model computes it")])
def test_a_plan_that_stores_what_is_no_weight_is_refused(name: str, words: str) -> None:
    data = octavo.plan(conv_and_linear(), COMPRESSED).to_dict()
    data["compressed"] = {name: data["compressed"]["k"]}
    with pytest.raises(TableError, match=words):
        octavo.quantize(conv_and_linear(), plan=Plan.from_dict(data))


def test_a_stored_model_is_recognized_and_quantized_like_the_float_one(tmp_path: Path) -> None:
    first = octavo.quantize(conv_and_linear(), recipe=COMPRESSED, output=tmp_path / "stored.onnx")
    found = octavo.inspect(tmp_path / "stored.onnx")
    assert found.stored == {"int8/channel": 2}
    assert found.to_dict()["stored"] == {"int8/channel": 2}
    again = octavo.quantize(tmp_path / "stored.onnx", recipe=COMPRESSED)
    assert list(again.plan.compressed) == list(first.plan.compressed)
    for name in first.plan.compressed:
        np.testing.assert_array_equal(
            restored(to_proto(again.model), name), restored(to_proto(first.model), name)
        )
    dynamic = octavo.quantize(tmp_path / "stored.onnx", effort="plain")
    assert list(dynamic.plan.nodes) == ["linear"]


def test_lint_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    octavo.quantize(conv_and_linear(), recipe=COMPRESSED, output=tmp_path / "stored.onnx")
    assert not octavo.lint(tmp_path / "stored.onnx").findings


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_models_of_other_float_types_are_stored_too(dtype: Any) -> None:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [node("MatMul", ["x", "w"], ["y"], "layer")]
    weight = normal(48, 32).astype(dtype)
    source = model(nodes, [tensor("x", [2, 48], kind)], [tensor("y", None, kind)], {"w": weight})
    result = octavo.quantize(source, recipe=COMPRESSED)
    x = normal(2, 48, seed=5).astype(dtype)
    kept = restored(to_proto(result.model), "w")
    assert np.all(np.abs(kept - weight) <= 0.51 * np.abs(weight).max(axis=0) / 127)
    wanted = x.astype(np.float64) @ kept
    found = Session.open(result.model).run({"x": x})["y"]
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=2e-3, atol=2e-2)


def reasons(source: onnx.ModelProto, **more: Any) -> str:
    """Why the one weight of a model is not stored; its other weight is, so that there is a result."""
    plan = octavo.plan(source, COMPRESSED.but(**more))
    assert list(plan.compressed) == ["w"]
    return "\n".join(plan.notes)


def test_an_excluded_layer_keeps_its_weight() -> None:
    assert "k: a layer that reads it is excluded" in reasons(conv_and_linear(), exclude=("conv",))


def test_an_override_keeps_a_weight() -> None:
    kept = octavo.Override("k", keep_float=True)
    assert "k: an override of 'k'" in reasons(conv_and_linear(), overrides=(kept,))


@pytest.mark.parametrize(("spoiled", "words"), [(np.nan, "NaN"), (1e6, "round to zero beside an outlier")])
def test_a_weight_that_int8_would_ruin_stays_float(spoiled: float, words: str) -> None:
    source = conv_and_linear()
    kernel = normal(16, 8, 3, 3)
    kernel[:, 0, 0, 0] = spoiled
    source.graph.initializer[0].CopyFrom(numpy_helper.from_array(kernel, "k"))
    assert words in reasons(source)


def test_a_tied_table_of_embeddings_that_are_to_stay_float_is_kept() -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "lookup"),
        node("Gemm", ["e", "table"], ["s"], "head", transB=1),
        node("Gemm", ["s", "w"], ["y"], "last"),
    ]
    ids = tensor("ids", [4], onnx.TensorProto.INT64)
    arrays = {"table": normal(64, 32), "w": normal(64, 32, seed=1)}
    source = model(nodes, [ids], [tensor("y", None)], arrays)
    assert "embeddings" in reasons(source, quantize_embeddings=False)


def test_small_weights_and_what_is_no_weight_stay_float() -> None:
    arrays = {"w": normal(48, 32), "small": normal(32, 31), "grid": normal(2, 1024).reshape(64, 32)}
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "layer"),
        node("Add", ["a", "grid"], ["b"], "shift"),
        node("MatMul", ["b", "small"], ["y"], "head"),
    ]
    source = model(nodes, [tensor("x", [64, 48])], [tensor("y", None)], arrays)
    assert list(octavo.plan(source, COMPRESSED).compressed) == ["w"]


def test_a_model_with_nothing_to_store_is_refused() -> None:
    with pytest.raises(ModelError, match="nothing that can be quantized"):
        octavo.quantize(one("MatMul", {"w": normal(8, 8)}, (1, 8)), recipe=COMPRESSED)


def test_another_type_than_int8_is_refused() -> None:
    with pytest.raises(RecipeError, match="stored as int8, not as uint8"):
        COMPRESSED.but(compressed=UINT8)


def test_a_recipe_file_says_int8(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("base: W8\nstored: int8\n", encoding="utf-8")
    assert octavo.Recipe.load(tmp_path / "r.yaml") == octavo.W8.but(compressed=INT8)


def test_reports_say_what_is_stored() -> None:
    result = octavo.quantize(conv_and_linear(), recipe=octavo.W8.but(compressed=INT8))
    words = "1 weight compressed to int8, dequantized at load: k"
    assert words in markdown(result)
    assert words in result._repr_html_()
    assert result.manifest()["stored"] == 1
    made = report(details.full(result, "small.onnx"))
    assert "1 weight compressed" in made
