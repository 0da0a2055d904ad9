"""Results in a REPL, in a notebook and in ``help()``: short, and safe whatever a model is called."""

from __future__ import annotations

import pydoc
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import feeds_for, weights

import octavo


def _net() -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "w"], ["h"], name="first\x1b[31m"), node("MatMul", ["h", "v"], ["y"])],
        [tensor("x", ["N", 32])],
        [tensor("y", ["N", 8])],
        {"w": weights(32, 32), "v": weights(32, 8, seed=1)},
    )


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    proto = _net()
    data = feeds_for(proto, 8)
    result = octavo.quantize(proto, data, effort="plain")
    return {
        "Result": result,
        "Plan": result.plan,
        "Prepared": octavo.prepare(proto),
        "Inspection": octavo.inspect(result.model),
        "Tuned": octavo.tune(proto, data, effort="standard", seconds=0.1),
        "Lint": octavo.lint(result.model),
        "Diagnosis": octavo.doctor(proto, data),
        "Comparison": octavo.compare(proto, result, data),
        "Evaluation": octavo.evaluate(result.model, data, "agreement", against=proto),
        "Bench": octavo.bench(proto, seconds=0.05),
    }


NAMES = ("Result", "Plan", "Prepared", "Inspection", "Tuned", "Lint", "Diagnosis", "Comparison")


@pytest.mark.parametrize("name", [*NAMES, "Evaluation", "Bench"])
def test_a_result_is_one_line_in_a_repl_and_a_table_in_a_notebook(name: str, results: dict[str, Any]) -> None:
    line, html = repr(results[name]), results[name]._repr_html_()
    assert line.startswith(f"<{name}: ") and line.endswith(">")
    assert len(line) < 250 and "\n" not in line
    assert html.startswith("<") and "\x1b" not in html + line
    assert len(str(results[name])) < 10_000


def test_a_trial_is_one_line(results: dict[str, Any]) -> None:
    for trial in results["Tuned"].trials:
        assert len(repr(trial)) < 250 and "\n" not in repr(trial)


def test_a_recipe_shows_what_differs_from_the_defaults() -> None:
    assert len(repr(octavo.W8A8)) < 150
    assert "exclude=('head',)" in repr(octavo.W8A8.but(exclude="head"))
    assert "overrides" not in repr(octavo.W8A8)


def test_help_names_every_public_name() -> None:
    page = pydoc.plain(pydoc.render_doc(octavo))
    description = page[: page.index("PACKAGE CONTENTS")]
    missing = [name for name in octavo.__all__ if name not in description and name != "__version__"]
    assert missing == []


def test_types_by_name_make_a_recipe() -> None:
    proto = _net()
    data = [feed["x"] for feed in feeds_for(proto, 4)]
    result = octavo.quantize(proto, data, recipe={"weights": "int8", "activations": "int8"})
    assert {p.qtype.name for p in result.params.values()} == {"int8"}
    changed = octavo.Recipe.from_dict({"base": "W8A8", "activations": "uint16"})
    assert changed == octavo.W8A8.but(activations="uint16")
    with pytest.raises(octavo.RecipeError, match="base: W8A8"):
        octavo.Recipe.from_dict({"exclude": "head"})


def test_an_array_by_itself_is_a_sample_of_a_model_with_one_input() -> None:
    proto = _net()
    named = feeds_for(proto, 4)
    plain = octavo.quantize(proto, [feed["x"] for feed in named], effort="plain")
    other = octavo.quantize(proto, named, effort="plain")
    assert all(np.array_equal(plain.params[key].scale, other.params[key].scale) for key in other.params)


def test_requirements_of_another_kind_get_a_sentence() -> None:
    with pytest.raises(octavo.RecipeError, match=r"octavo\.Requirements or a dict"):
        octavo.tune(_net(), feeds_for(_net(), 4), requirements=[20])  # type: ignore[arg-type]


def test_a_model_in_the_place_of_data_gets_a_sentence() -> None:
    with pytest.raises(octavo.RecipeError, match="against="):
        octavo.evaluate("model.onnx", "model.int8.onnx", "test.npz")
