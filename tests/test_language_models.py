"""Weight-only quantization of language models: what is written is run, and compared with float or float64."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from decoders import SHAPES, VOCABULARY, WIDTH, ids, merged_decoder, primitive_decoder, weights

import octavo
from octavo.core.budget import Priced, choose
from octavo.core.plan import Key, Plan, Shared
from octavo.data.decoder import Decoder
from octavo.errors import DataError, RecipeError
from octavo.model.files import io
from octavo.model.runtime.session import Session


def feeds(proto: onnx.ModelProto, count: int = 6) -> list[dict[str, np.ndarray]]:
    """Texts of 24 tokens from an empty cache."""
    session = Session.open(io.load(proto))
    decoder = Decoder.of(session.inputs, session.output_names)
    assert decoder is not None
    return [decoder.feed(ids(seed=seed)) for seed in range(count)]


def logits(model: object, feed: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(Session.open(model).run(feed)["logits"])  # type: ignore[arg-type]


def divergence(own: np.ndarray, reference: np.ndarray) -> float:
    own, reference = own.astype(np.float64), reference.astype(np.float64)
    log_q = own - np.log(np.exp(own).sum(-1, keepdims=True))
    log_p = reference - np.log(np.exp(reference).sum(-1, keepdims=True))
    return float((np.exp(log_p) * (log_p - log_q)).sum(-1).mean())


def constants(result: octavo.Result) -> dict[str, onnx.TensorProto]:
    return {one.name: one for one in io.to_proto(result.model).graph.initializer}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_quantized_with_and_without_data(shape: str) -> None:
    proto = SHAPES[shape]()
    data = feeds(proto)
    for given in (None, data):
        result = octavo.quantize(proto, given, weights="int4")
        counts = [node.op_type for node in result.model.graph]
        assert counts.count("MatMulNBits") == 13
        apart = divergence(logits(result.model, data[0]), logits(io.load(proto), data[0]))
        assert apart < 0.1


@pytest.mark.parametrize("algorithm", ["importance", "gptq"])
def test_a_merged_decoder_gets_the_weights_that_its_branches_would_get_alone(algorithm: str) -> None:
    found = []
    for proto in (primitive_decoder(), merged_decoder()):
        data = feeds(proto)
        result = octavo.quantize(proto, data, weights="int4", algorithm=algorithm)
        assert divergence(logits(result.model, data[0]), logits(io.load(proto), data[0])) < 0.1
        stored = {name: value for name, value in constants(result).items() if name.endswith(("_Q4", "_Q8"))}
        found.append({name: onnx.numpy_helper.to_array(value) for name, value in stored.items()})
    plain, merged = found
    assert plain.keys() == merged.keys()
    assert len(plain) == 13
    assert all(np.array_equal(plain[name], merged[name]) for name in plain)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("stored", ["once", "twice"])
def test_a_table_that_is_looked_up_and_makes_logits_is_stored_once(
    bits: int, symmetric: bool, stored: str, tmp_path: Path
) -> None:
    proto = primitive_decoder(tied=stored == "once")
    if stored == "twice":
        tensor = next(one for one in proto.graph.initializer if one.name == "head")
        tensor.CopyFrom(onnx.numpy_helper.from_array(weights()["embed"].T.copy(), "head"))
    result = octavo.quantize(
        proto,
        weights="int4",
        head=bits,
        embeddings=bits,
        symmetric=symmetric,
        layers={"l0*": "float", "l1*": "float"},
    )
    entry = result.plan.entries[Key("embed", "embedded")]
    assert isinstance(entry, Shared)
    assert result.plan.root(Key("embed", "embedded")).consumer == "logits"
    whole = [one for one in constants(result).values() if one.data_type == onnx.TensorProto.UINT8]
    tables = [one for one in whole if len(one.dims) == 3]
    assert [list(one.dims) for one in tables] == [[VOCABULARY, WIDTH // 32, 32 * bits // 8]]
    assert not any(list(one.dims) == [VOCABULARY, WIDTH] for one in constants(result).values())
    names = {node.op_type: node for node in io.to_proto(result.model).graph.node}
    assert names["GatherBlockQuantized"].input[2] == names["MatMulNBits"].input[2]
    rows = np.arange(VOCABULARY)[None]
    table = _looked_up(result, rows)
    near = {2: 0.7, 4: 0.12, 8: 0.01}[bits]
    assert np.linalg.norm(table[0] - weights()["embed"]) < near * np.linalg.norm(weights()["embed"])
    result.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(proto, plan=Plan.load(tmp_path / "plan.json"))
    same = [io.to_proto(one.model).graph.SerializeToString() for one in (again, result)]
    assert same[0] == same[1]


def _looked_up(result: octavo.Result, rows: np.ndarray) -> np.ndarray:
    """The rows of the table that the quantized model looks up."""
    proto = io.to_proto(result.model)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("embedded", onnx.TensorProto.FLOAT, None))
    session = Session.open(proto.SerializeToString())
    decoder = Decoder.of(session.inputs, session.output_names[:-1])
    assert decoder is not None
    return np.asarray(session.run(decoder.feed(rows))["embedded"])


def test_a_table_and_a_head_of_other_values_or_bits_are_stored_apart() -> None:
    apart = octavo.quantize(primitive_decoder(), weights="int4", embeddings=8)
    assert not isinstance(apart.plan.entries[Key("embed", "embedded")], Shared)
    other = octavo.quantize(primitive_decoder(tied=True), weights="int4", embeddings=4)
    assert not isinstance(other.plan.entries[Key("embed", "embedded")], Shared)
    for result in (apart, other):
        feed = feeds(primitive_decoder())[0]
        assert np.isfinite(logits(result.model, feed)).all()


def test_tables_of_positions_stay_float_beside_the_vocabulary() -> None:
    proto = primitive_decoder()
    table = np.cos(np.arange(4 * WIDTH).reshape(4, WIDTH)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(table, "positions"))
    nodes = [
        onnx.helper.make_node("Gather", ["positions", "position_ids"], ["place"], "placed"),
        onnx.helper.make_node("Add", ["embedded", "place"], ["moved"], "move"),
    ]
    for node in proto.graph.node:
        node.input[:] = ["moved" if name == "embedded" else name for name in node.input]
    at = next(i for i, node in enumerate(proto.graph.node) if node.name == "embedded") + 1
    for node in reversed(nodes):
        proto.graph.node.insert(at, node)
    plan = octavo.plan(proto, weights="int4", embeddings=8)
    assert plan.nodes["embedded"].lowering == "GatherBlockQuantized"
    assert "small beside" in next(one.reason for one in plan.skipped if one.node == "placed")


def uneven() -> onnx.ModelProto:
    """A decoder some of whose channels are much larger than others in front of every layer."""
    proto = primitive_decoder()
    gains = np.exp(np.random.default_rng(3).normal(0, 1.5, WIDTH)).astype(np.float32)
    for tensor in proto.graph.initializer:
        if tensor.name.endswith((".norm1", ".norm2")):
            array = onnx.numpy_helper.to_array(tensor) * gains
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return proto


def test_without_data_weights_are_weighted_by_the_inputs_that_random_tokens_make() -> None:
    proto = uneven()
    made = octavo.quantize(proto, weights="int4", accuracy_level=0)
    plain = octavo.quantize(proto, weights="int4", accuracy_level=0, algorithm="k-quant")
    test = feeds(proto, 3)
    moved = [
        np.mean([divergence(logits(one.model, feed), logits(io.load(proto), feed)) for feed in test])
        for one in (made, plain)
    ]
    assert moved[0] < 0.9 * moved[1]
    assert any("random token" in note for note in made.plan.notes)
    assert made.recipe is not None
    assert [report.step for report in made.steps] == ["awq"]
    again = octavo.quantize(proto, recipe=made.recipe)
    assert io.to_proto(again.model).graph == io.to_proto(made.model).graph


def test_a_model_that_random_tokens_are_too_long_for_gets_the_search_without_inputs() -> None:
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        example (int64[1, n] input_ids, int64[1, n] position_ids) => (float[1, n, 64] logits) {
            words = Gather (table, input_ids)
            places = Gather (positions, position_ids)
            x = Add (words, places)
            logits = MatMul (x, w)
        }""")
    for name, shape in (("table", (50, 32)), ("positions", (16, 32)), ("w", (32, 64))):
        array = random.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made = octavo.quantize(proto, weights="int4", head="same")
    assert made.recipe is not None
    assert made.recipe.weight_only.algorithm.startswith("k-quant")
    assert not made.recipe.steps
    assert any("random token" in note for note in made.plan.notes)


def test_awq_lowers_the_divergence_without_data_and_is_left_out_where_steps_are_named() -> None:
    proto = uneven()
    made = octavo.quantize(proto, weights="int4", accuracy_level=0)
    plain = octavo.quantize(proto, weights="int4", accuracy_level=0, steps=())
    assert plain.recipe is not None
    assert "random_tokens" in plain.recipe.weight_only.algorithm
    assert not plain.steps
    test = feeds(proto, 3)
    awq, importance = (
        np.mean([divergence(logits(one.model, feed), logits(io.load(proto), feed)) for feed in test])
        for one in (made, plain)
    )
    assert awq < 0.9 * importance


def test_a_model_that_reads_no_token_ids_gets_no_step_without_data() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        example (float[1, n, 64] x) => (float[1, n, 64] y) { y = MatMul (x, w) }""")
    array = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(array, "w"))
    made = octavo.quantize(proto, weights="int4")
    assert made.recipe is not None
    assert not made.recipe.steps
    with pytest.raises(DataError, match="awq need calibration data"):
        octavo.quantize(proto, weights="int4", steps="awq")


def test_an_algorithm_that_is_named_gets_no_random_tokens() -> None:
    with pytest.raises(DataError, match="data"):
        octavo.quantize(primitive_decoder(), weights="int4", algorithm="importance")


def test_with_data_awq_comes_before_the_search_unless_the_algorithm_is_named() -> None:
    proto = uneven()
    data = feeds(proto, 8)
    made = octavo.quantize(proto, data, weights="int4", accuracy_level=0)
    assert made.recipe is not None
    assert made.recipe.steps == ("awq",)
    named = octavo.quantize(proto, data, weights="int4", algorithm="importance")
    assert named.recipe is not None
    assert not named.recipe.steps
    wide = octavo.quantize(proto, data, weights="int8", per="block:32")
    assert wide.recipe is not None
    assert not wide.recipe.steps


def matrix_bytes(result: octavo.Result) -> int:
    """The bytes of everything that a MatMulNBits of the layers reads beside its input."""
    proto = io.to_proto(result.model)
    sizes = {one.name: len(one.raw_data) for one in proto.graph.initializer}
    nodes = [n for n in proto.graph.node if n.op_type == "MatMulNBits" and not n.name.startswith("logits")]
    return sum(sizes[name] for n in nodes for name in n.input[1:] if name)


def sharp() -> onnx.ModelProto:
    """A decoder in which some layers matter more than others."""
    proto = primitive_decoder()
    for tensor in proto.graph.initializer:
        if tensor.name in ("l0.v", "l0.o"):
            array = 4 * onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    return proto


def test_bits_by_sensitivity_move_predictions_less_at_the_same_bytes() -> None:
    proto = sharp()
    data = feeds(proto, 14)
    uniform = octavo.quantize(proto, data, weights="int4", accuracy_level=0)
    mixed = octavo.quantize(proto, data, weights="int4", accuracy_level=0, bits=4)
    assert matrix_bytes(mixed) <= matrix_bytes(uniform)
    assert mixed.recipe is not None
    assert mixed.recipe.weight_only.average_bits is None
    assert {str(one.qtype) for one in mixed.recipe.weight_only.layers} >= {"uint8"}
    assert any("bits by sensitivity" in note for note in mixed.plan.notes)
    moved = [
        np.mean([divergence(logits(one.model, feed), logits(io.load(proto), feed)) for feed in data[-3:]])
        for one in (mixed, uniform)
    ]
    assert moved[0] < 0.9 * moved[1]
    again = octavo.quantize(proto, data, recipe=mixed.recipe)
    assert io.to_proto(again.model).graph == io.to_proto(mixed.model).graph
    more = octavo.quantize(proto, data, weights="int4", accuracy_level=0, bits=6)
    assert matrix_bytes(uniform) < matrix_bytes(more) <= 1.45 * matrix_bytes(uniform)


@pytest.mark.parametrize("make", [primitive_decoder, merged_decoder])
@pytest.mark.parametrize("size", [0.18, 0.22])
def test_a_size_is_kept_and_predictions_move_less_where_it_is_larger(make: Any, size: float) -> None:
    proto = make()
    data = feeds(proto)
    result = octavo.quantize(proto, data, size=size, algorithm="importance")
    assert 0.93 * size < result.bytes / result.float_bytes < 1.005 * size
    larger = octavo.quantize(proto, data, size=size + 0.05, algorithm="importance")
    reference = logits(io.load(proto), data[0])
    apart = [divergence(logits(one.model, data[0]), reference) for one in (result, larger)]
    assert apart[1] < apart[0] < 0.3


def test_a_size_that_can_not_be_reached_says_which_can() -> None:
    proto = primitive_decoder()
    with pytest.raises(RecipeError, match=r"with 2 bits in every layer the weights take 0\.1"):
        octavo.quantize(proto, feeds(proto), size=0.05)
    with pytest.raises(RecipeError, match="leave one of them out"):
        octavo.quantize(proto, feeds(proto), size=0.2, bits=4)


def test_bits_by_sensitivity_need_data_that_can_be_read_again() -> None:
    proto = primitive_decoder()
    with pytest.raises(DataError, match="calibration data"):
        octavo.quantize(proto, weights="int4", bits=4)
    with pytest.raises(DataError, match="only once"):
        octavo.quantize(proto, iter(feeds(proto)), weights="int4", bits=4)
    with pytest.raises(RecipeError, match="2 to 8 bits on average"):
        octavo.quantize(proto, feeds(proto), weights="int4", bits=9)


def test_sizes_within_a_budget_lose_the_least() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        losses = -np.sort(-rng.random((6, 3)), axis=1)
        things = [
            [Priced(size, float(loss)) for size, loss in zip((1, 2, 4), row, strict=True)] for row in losses
        ]

        def total(chosen: Sequence[int], what: str, things: list[list[Priced]] = things) -> float:
            return sum(getattr(sizes[index], what) for sizes, index in zip(things, chosen, strict=True))

        every = list(itertools.product(range(3), repeat=6))
        for budget in (6, 9, 14, 24):
            got = choose(things, budget)
            assert total(got, "bytes") <= budget
            least = min(total(one, "loss") for one in every if total(one, "bytes") <= budget)
            assert total(got, "loss") <= least + float(np.ptp(losses, axis=1).max())
        assert got == [2] * 6
    assert choose([[Priced(5, 1.0), Priced(9, 0.5)]], 1) == [0]
