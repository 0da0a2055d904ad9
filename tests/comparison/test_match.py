"""Tensors are matched by structure."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import conv_net, graph, model, node, tensor
from onnx import TensorProto
from quantizing import EVERYWHERE, convolutions, feeds_for, layers, weights

import octavo
from octavo.comparison.comparing import compare
from octavo.comparison.constant_values import blocks, cast_type, is_constant, real
from octavo.comparison.lowered_operators import weight
from octavo.comparison.match import Matching, aligned, best_match, plain, weight_pairs
from octavo.core import metrics
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query

from .injuries import attention, rename_all


def _matched(proto: onnx.ModelProto, quantized: object) -> Matching:
    return best_match(proto, plain(quantized))[0]


def _pairs(found: Matching) -> dict[str, str]:
    return {p.float_unit.name: p.target.name or "" for p in found.pairs}


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
@pytest.mark.parametrize("renamed", [False, True], ids=["same names", "other names"])
def test_folded_and_fused_nodes_are_stepped_over(style: str, renamed: bool) -> None:
    proto = conv_net()
    made = io.to_proto(octavo.quantize(proto, feeds_for(proto), style=style).model)
    found = _matched(proto, rename_all(made) if renamed else made)
    assert not found.unmatched
    assert _pairs(found)["Conv_0"] == "relu"  # batch normalization folded, Relu fused
    assert _pairs(found)["Gemm_0"] == "y"


@pytest.mark.parametrize("make", [layers, convolutions, attention])
@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_quantized_weights_are_close_to_those_they_are_matched_with(make: object, style: str) -> None:
    proto = make()  # type: ignore[operator]
    made = io.to_proto(octavo.quantize(proto, feeds_for(proto), style=style).model)
    found = _matched(proto, rename_all(made))
    close = []
    for pair, place in weight_pairs(found):
        one, other = weight(pair.float_unit, place), weight(pair.unit, place)
        if one is not None and other is not None:
            turned = aligned(one, other)
            assert turned is not None
            close.append(metrics.sqnr(one, turned))
    assert len(close) >= 3
    assert min(close) > 30


def test_queries_keys_and_values_are_told_apart_by_their_weights() -> None:
    proto = attention()
    made = rename_all(io.to_proto(octavo.quantize(proto).model))
    found = _matched(proto, made)
    for pair in found.pairs:
        if pair.float_unit.name in ("query", "key", "value"):
            one, other = weight(pair.float_unit, 1), weight(pair.unit, 1)
            assert one is not None and other is not None and metrics.sqnr(one, other) > 30


def test_a_model_that_was_not_prepared_is_matched_as_it_is() -> None:
    proto = conv_net()
    made = octavo.quantize(proto, feeds_for(proto), prepare=None, recipe=EVERYWHERE)
    found, _ = best_match(proto, plain(made.model))
    assert found.share == 1.0


def test_weights_in_blocks_are_read() -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(0, 16, (8, 2, 16)).astype(np.uint8)
    scales = rng.uniform(0.1, 1, (8, 2)).astype(np.float32)
    packed = (integers[..., 0::2] | (integers[..., 1::2] << 4)).astype(np.uint8)
    block = node(
        "MatMulNBits", ["x", "packed", "scales"], ["y"], "nbits",
        domain="com.microsoft", K=32, N=8, bits=4, block_size=16, accuracy_level=0,
    )  # fmt: skip
    proto = model(
        [block], [tensor("x", [4, 32])], [tensor("y", [4, 8])], {"packed": packed, "scales": scales}
    )
    proto.opset_import.add(domain="com.microsoft", version=1)
    opened = plain(proto)
    found = blocks(next(iter(query.nodes(opened))))
    x = weights(4, 32)
    from octavo.model.runtime.session import Session

    ran = Session.open(proto.SerializeToString(), optimize=False).run({"x": x})["y"]
    assert found is not None
    np.testing.assert_allclose(x @ found.T, ran, rtol=1e-4, atol=1e-4)
    plain_model = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", [4, 32])], [tensor("y", [4, 8])], {"w": found.T.copy()},
    )  # fmt: skip
    compared = compare(plain_model, proto, [{"x": x}])
    assert compared.weights[0].name == "w"
    assert compared.weights[0].qtype == "uint4"
    assert compared.weights[0].errors.sqnr > 100


@pytest.mark.parametrize(
    ("options", "table", "least"),
    [
        ({}, "float16", 60.0),
        ({"embeddings": 4, "symmetric": False}, "uint4", 15.0),
        ({"embeddings": 8, "symmetric": False}, "uint8", 40.0),
        ({"embeddings": 2, "symmetric": False}, "uint2", 5.0),
    ],
    ids=["table in float16", "uint4", "uint8", "uint2"],
)
def test_4_bit_weights_beside_float16_are_compared_with_the_type_that_they_have(
    options: dict[str, object], table: str, least: float
) -> None:
    nodes = [
        node("Gather", ["table", "ids"], ["e"], "look"), node("MatMul", ["e", "w"], ["h"], "product"),
        node("Relu", ["h"], ["r"], "relu"), node("MatMul", ["r", "v"], ["y"], "second"),
    ]  # fmt: skip
    constants = {"table": weights(96, 64), "w": weights(64, 128), "v": weights(128, 64)}
    proto = model(nodes, [tensor("ids", [4], TensorProto.INT64)], [tensor("y", [4, 64])], constants)
    feeds = [{"ids": np.arange(first, first + 4)} for first in range(0, 96, 8)]
    made = octavo.quantize(proto, feeds, weights="int4", float_type="fp16:compute", **options)  # type: ignore[call-overload]
    found = compare(proto, made.model, feeds)
    assert not found.unmatched
    kinds = {one.name: one for one in found.weights}
    assert {name: one.qtype for name, one in kinds.items() if name == "table"} == {"table": table}
    assert kinds["table"].errors.sqnr > least
    assert {kinds["w"].qtype, kinds["v"].qtype} <= {"uint4", "uint8"}
    assert all(one.local is not None and one.local.sqnr > 5 for one in found.tensors)


def test_constants_are_read_through_quantize_transpose_and_cast() -> None:
    w = weights(6, 4)
    proto = model(
        [
            node("QuantizeLinear", ["w", "s", "z"], ["q"], "q"),
            node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
            node("Transpose", ["d"], ["t"], "t", perm=[1, 0]),
            node("MatMul", ["x", "t"], ["y"], "m"),
        ],
        [tensor("x", [2, 4])],
        [tensor("y", [2, 6])],
        {"w": w, "s": np.float32(0.05), "z": np.int8(0)},
    )
    product = next(n for n in query.nodes(plain(proto)) if n.op_type == "MatMul")
    assert is_constant(product.inputs[1])
    want = np.clip(np.rint(w / np.float32(0.05)), -128, 127) * np.float32(0.05)
    np.testing.assert_allclose(real(product.inputs[1]), want.T, rtol=1e-5)


def _with_branches() -> onnx.ModelProto:
    def branch(name: str, seed: int) -> onnx.GraphProto:
        nodes = [node("MatMul", ["h", f"w_{name}"], [f"{name}_out"], f"product_{name}")]
        return graph(
            nodes, [], [tensor(f"{name}_out", None)], {f"w_{name}": weights(8, 8, seed=seed)}, name=name
        )

    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first"),
        node("If", ["cond"], ["y"], "If_0", then_branch=branch("a", 1), else_branch=branch("b", 2)),
    ]
    return model(
        nodes,
        [tensor("x", [3, 8]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", [3, 8])],
        {"w": weights(8, 8)},
    )


def test_subgraphs_are_matched_and_their_tensors_compared() -> None:
    proto = _with_branches()
    data = feeds_for(proto, cond=np.array(True)) + feeds_for(proto, cond=np.array(False))
    made = octavo.quantize(proto, data, recipe=EVERYWHERE)
    found = compare(proto, made.model, data)
    inner = {t.name: t for t in found.tensors}
    assert {"a_out", "b_out"} <= set(inner)
    assert inner["a_out"].local is None and inner["a_out"].accumulated is not None
    assert inner["a_out"].accumulated.sqnr > 25
    assert any("subgraphs" in note for note in found.notes)


def test_comparing_with_a_float_model_is_refused() -> None:
    with pytest.raises(octavo.ModelError, match="no quantized operator and no 16-bit float"):
        compare(layers(), layers(), feeds_for(layers()))


@pytest.mark.parametrize("kind", ["fp16:compute", "fp16:storage", "bf16:storage"])
def test_16_bit_floats_are_compared_tensor_by_tensor(kind: str) -> None:
    proto = model(
        [node("MatMul", ["x", "w"], ["h"], "product"), node("Relu", ["h"], ["y"], "relu")],
        [tensor("x", [4, 64])], [tensor("y", [4, 32])], {"w": weights(64, 32)},
    )  # fmt: skip
    half = octavo.quantize(proto, feeds_for(proto), float_type=kind).model
    found = compare(proto, half, feeds_for(proto))
    assert found.tensors and found.outputs[0].errors is not None
    assert found.outputs[0].errors.sqnr > 35
    assert all(t.local is not None and t.local.sqnr > 40 for t in found.tensors)


def test_bfloat16_that_is_computed_in_is_refused_with_what_can_be_compared() -> None:
    half = octavo.quantize(layers(), float_type="bf16:compute", verify=False).model
    with pytest.raises(octavo.ModelError, match="bf16:storage"):
        compare(layers(), half, feeds_for(layers()))


def test_a_model_of_another_kind_is_refused_or_left_unmatched() -> None:
    other = octavo.quantize(convolutions(), feeds_for(convolutions()), effort="plain").model
    with pytest.raises(octavo.OctavoError):
        compare(layers(), other, feeds_for(layers()))


def test_a_cast_to_a_type_that_does_not_exist_is_an_error_of_the_model() -> None:
    cast = ir.node("Cast", [ir.Value(name="x")], attributes={"to": 99}, name="cast")
    with pytest.raises(ModelError, match="'cast' names type 99"):
        cast_type(cast)
