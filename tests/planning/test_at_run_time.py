"""Linear layers of a static model that find the ranges of their inputs while the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tuning.nets import conv_and_linear, samples

import octavo
from octavo.core.plan import Dynamic, Key
from octavo.errors import RecipeError
from octavo.model.runtime.session import Session


def quantized(*nodes: str, **more: Any) -> octavo.Result:
    recipe = octavo.W8A8.but(dynamic_nodes=nodes)
    return octavo.quantize(conv_and_linear(), samples(8), recipe=recipe, **more)


def op_types(result: octavo.Result) -> list[str]:
    return [node.op_type for node in result.model.graph]


def test_the_named_layers_are_dynamic_and_the_others_static() -> None:
    result = quantized("first")
    kinds = op_types(result)
    assert kinds.count("DynamicQuantizeLinear") == kinds.count("MatMulInteger") == 1
    assert "QuantizeLinear" in kinds
    assert isinstance(result.plan.entries[Key("f", "first")], Dynamic)
    assert "conv" in result.plan.nodes


def test_outlier_inputs_are_clipped_by_a_static_range_and_not_by_one_found_at_run_time() -> None:
    outlier = {"x": 20 * samples(1)[0]["x"]}
    want = Session.open(conv_and_linear().SerializeToString()).run(outlier)["logits"]

    def error(*nodes: str) -> float:
        found = Session.open(quantized(*nodes, exclude=("stem", "conv")).model).run(outlier)["logits"]
        return float(np.abs(found - want).max() / np.abs(want).max())

    assert error() > 0.3
    assert error("first", "second") < 0.05


def test_a_name_that_no_layer_has_is_refused() -> None:
    with pytest.raises(RecipeError, match="matches no node"):
        quantized("frist")


def test_a_layer_that_can_not_stays_static() -> None:
    result = quantized("conv")
    assert "ConvInteger" not in op_types(result)
    assert "conv" in result.plan.nodes


def test_the_recipe_remembers_them() -> None:
    recipe = octavo.W8A8.but(dynamic_nodes=("first",))
    assert octavo.Recipe.from_dict(recipe.to_dict()) == recipe
