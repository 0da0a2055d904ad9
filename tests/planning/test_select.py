"""Which nodes a recipe means."""

from __future__ import annotations

import builders
import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import EVERYWHERE, convolutions, error, feeds_for, layers, ops, reason, weights

import octavo
from octavo.errors import RecipeError


def quantized(proto: onnx.ModelProto, **selection: object) -> set[str]:
    return set(octavo.plan(proto, **selection).nodes)  # type: ignore[arg-type]


PRODUCTS = {"/block_0/MatMul", "/block_1/MatMul", "/block_2/MatMul"}


@pytest.mark.parametrize(
    "pattern",
    [
        "/block_1/MatMul",
        "*_1/MatMul",
        "re:block_1/Mat",
        "between:r0,m1",
        lambda node: node.name == "/block_1/MatMul",
    ],
    ids=["name", "glob", "regex", "between", "callable"],
)
def test_a_pattern_of_each_kind_leaves_out_and_lets_in_the_nodes_it_means(pattern: object) -> None:
    assert quantized(layers(), exclude=[pattern]) == PRODUCTS - {"/block_1/MatMul"}
    assert quantized(layers(), include=[pattern]) == {"/block_1/MatMul"}


def test_an_op_type_pattern_means_all_nodes_of_that_type() -> None:
    proto = convolutions()
    assert quantized(proto, exclude=["op:Conv"]) == set()
    assert quantized(proto, include=["op:Conv"]) == {"Conv_0", "Conv_1", "Conv_2"}


def test_exclude_wins_over_include() -> None:
    assert quantized(layers(), include=["op:MatMul"], exclude=["*_0/*"]) == PRODUCTS - {"/block_0/MatMul"}


def test_op_types_restrict_to_these_operators() -> None:
    proto = octavo.plan(convolutions(), op_types=["Conv"])
    assert proto.counts() == {"Conv": 3}


def test_between_means_the_nodes_on_a_path_and_no_others() -> None:
    proto = layers(4)
    chosen = quantized(proto, include=["between:r0,r2"])
    assert chosen == {"/block_1/MatMul", "/block_2/MatMul"}


def test_between_finds_paths_through_subgraphs() -> None:
    branch = onnx.helper.make_graph(
        [node("MatMul", ["h", "w"], ["o1"], "inside")], "t", [], [tensor("o1", [2, 16])]
    )
    other = onnx.helper.make_graph([node("Neg", ["h"], ["o2"], "neg")], "e", [], [tensor("o2", [2, 16])])
    proto = model(
        [
            node("MatMul", ["x", "w"], ["h"], "before"),
            node("If", ["c"], ["g"], "If_0", then_branch=branch, else_branch=other),
            node("MatMul", ["g", "w"], ["y"], "after"),
        ],
        [tensor("x", [2, 16]), tensor("c", [], onnx.TensorProto.BOOL)],
        [tensor("y", [2, 16])],
        {"w": weights(16, 16)},
    )
    assert quantized(proto, include=["between:h,y"]) == {"inside", "after"}


@pytest.mark.parametrize("pattern", ["/block_1/MatMull", "re:blok_1", "op:Matmul", "/head/*"])
def test_a_pattern_that_matches_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(RecipeError, match="matches no node"):
        octavo.plan(layers(), exclude=[pattern])


def test_the_error_of_a_misspelt_name_lists_close_names() -> None:
    with pytest.raises(RecipeError, match=r"did you mean '/block_1/MatMul'"):
        octavo.plan(layers(), exclude=["/block_1/MatMull"])
    with pytest.raises(RecipeError, match="'op:MatMul'"):
        octavo.plan(layers(), exclude=["op:Matmul"])
    with pytest.raises(RecipeError, match=r"no tensor is named 'rO'; did you mean .*'r0'"):
        octavo.plan(layers(), include=["between:rO,r2"])
    with pytest.raises(RecipeError, match="No rule is known"):
        octavo.plan(layers(), op_types=["MatMull"])


def test_a_node_that_preparation_folds_may_be_excluded_but_not_requested() -> None:
    proto = builders.conv_net()
    for pattern in ("BN_0", "BN*", "op:BatchNormalization"):
        assert "Conv_0" in quantized(proto, exclude=[pattern])
        with pytest.raises(
            RecipeError, match="only nodes that preparation has folded into others, such as 'BN_0'"
        ):
            octavo.plan(proto, include=[pattern])


def test_a_callable_that_matches_nothing_is_an_error_that_names_it() -> None:
    def heads(node: object) -> bool:
        return False

    with pytest.raises(RecipeError, match="the function heads matches no node"):
        octavo.plan(layers(), exclude=[heads])


def test_a_broken_regular_expression_is_an_error() -> None:
    with pytest.raises(RecipeError, match="regular expression"):
        octavo.plan(layers(), exclude=["re:("])


def test_between_needs_two_tensors() -> None:
    with pytest.raises(RecipeError, match="between:"):
        octavo.plan(layers(), include=["between:r0"])


def test_a_node_name_with_a_colon_or_brackets_is_found_as_it_is() -> None:
    proto = layers(1)
    proto.graph.node[0].name = "op:[strange]:0"
    assert quantized(proto, exclude=["op:[strange]:0"]) == set()


def test_an_op_type_that_only_the_recipe_names_and_the_model_lacks_quantizes_nothing_else() -> None:
    assert quantized(layers(), op_types=["MatMul", "Conv"]) == PRODUCTS


def test_an_excluded_node_says_by_what() -> None:
    plan = octavo.plan(layers(), exclude=["*_1/*"])
    assert reason(plan, "/block_1/MatMul") == "excluded by '*_1/*'"


def test_excluding_the_add_of_a_linear_layer_leaves_the_add_alone() -> None:
    proto = layers(1)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, exclude=["/block_0/Add"], effort="plain")
    assert set(result.plan.nodes) == {"/block_0/MatMul"}
    add = next(n for n in result.model.graph if n.name == "/block_0/Add")
    assert all(v.producer() is None or v.producer().op_type == "MatMul" for v in add.inputs)
    assert error(result, proto, data) < 0.05


def where_model() -> onnx.ModelProto:
    return model(
        [
            node("Conv", ["x", "w"], ["c"], "Conv_0", pads=[1, 1, 1, 1]),
            node("Where", ["m", "c", "k"], ["h"], "Where_0"),
            node("Conv", ["h", "w"], ["y"], "Conv_1", pads=[1, 1, 1, 1]),
        ],
        [tensor("x", [1, 8, 6, 6]), tensor("m", [1, 8, 6, 6], onnx.TensorProto.BOOL)],
        [tensor("y", [1, 8, 6, 6])],
        {"w": weights(8, 8, 3, 3) / 8, "k": np.float32(0.5)},
    )


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_an_excluded_where_keeps_its_float_inputs_and_the_model_runs(style: str) -> None:
    proto = where_model()
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=EVERYWHERE, style=style, exclude=["Where_0"])
    assert "Where_0" not in result.plan.nodes
    assert ops(result)["Where"] == 1
    assert ops(result)["QLinearWhere"] == 0
    assert not [k for k in result.plan.entries if k.consumer == "Where_0"]
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"exclude": ("n?",) * 5000}, "5000 patterns for 4000 nodes"),
        ({"include": ("re:n.",) * 5000}, "5000 patterns for 4000 nodes"),
        ({"overrides": (octavo.Override("t*", method=octavo.MinMax()),) * 5000}, "5000 patterns for 6001 t"),
    ],
    ids=["exclude", "include", "overrides"],
)
def test_more_patterns_than_can_be_tried_on_all_names_are_refused(
    settings: dict[str, object], what: str
) -> None:
    with pytest.raises(RecipeError, match=what):
        octavo.plan(builders.chain(4000), recipe=octavo.W8A8.but(**settings))
