from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import INT4, INT8, INT16, QTYPES, UINT8
from octavo.core.recipe import (
    COMPRESSED,
    FP8,
    PRESETS,
    W4,
    W8,
    W8A8,
    W8A16,
    DynamicScheme,
    Override,
    Placement,
    Recipe,
    Style,
    preset,
)
from octavo.core.scheme import Auto, Distribution, Entropy, MinMax, Percentile, Scheme
from octavo.errors import OctavoError, OutputError, RecipeError

names = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff\ufffe\uffff"), max_size=12
)
types = st.sampled_from(list(QTYPES.values()))
grains = st.sampled_from([PerTensor(), PerChannel(), PerChannel(1), PerBlock(32), PerBlock(16, 0)])
methods = st.sampled_from(
    [MinMax(), MinMax(True, 0.01), Percentile(99.9), Entropy(128), Auto(), Distribution()]
)
floats = st.floats(-1e6, 1e6)
schemes = st.builds(
    Scheme, types, grains, st.booleans(), methods, st.none() | st.floats(0, 1), st.booleans(), st.booleans()
)


@st.composite
def overrides(draw: st.DrawFn) -> Override:
    """Settings that do not exclude each other."""
    shared: dict[str, Any] = {
        "tensor": draw(names),
        "keep_float": draw(st.booleans()),
        "qtype": draw(st.none() | types),
        "granularity": draw(st.none() | grains),
        "method": draw(st.none() | methods),
        "consumers": draw(st.none() | st.lists(names, max_size=3).map(tuple)),
    }
    if draw(st.booleans()):
        count = draw(st.integers(1, 3))
        scale = draw(st.lists(st.floats(1e-6, 10), min_size=count, max_size=count).map(tuple))
        zero = draw(st.lists(st.integers(-128, 127), min_size=count, max_size=count).map(tuple))
        return Override(**shared, scale=scale, zero_point=zero)
    low, high = sorted((draw(floats), draw(floats)))
    return Override(
        **shared,
        symmetric=draw(st.none() | st.booleans()),
        reduce_range=draw(st.none() | st.booleans()),
        range=draw(st.none() | st.just((low, high))),
    )


recipes = st.builds(
    Recipe,
    schemes,
    st.none() | schemes | st.builds(DynamicScheme, st.sampled_from([UINT8, INT8])),
    st.sampled_from(Style),
    names,
    st.sampled_from(Placement),
    st.none() | st.lists(names, max_size=3).map(tuple),
    st.lists(names, max_size=3).map(tuple),
    st.lists(names, max_size=3).map(tuple),
    st.lists(overrides(), max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.none() | st.integers(1, 1000),
)


def written(tmp_path: Path, text: str | bytes, name: str = "recipe.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Round trips


@settings(max_examples=50)
@given(recipes)
def test_recipes_survive_plain_data(recipe: Recipe) -> None:
    plain = recipe.to_dict()
    again = Recipe.from_dict(plain)
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert Recipe.from_dict(json.loads(json.dumps(plain))) == recipe
    assert Recipe.from_dict(yaml.safe_load(yaml.safe_dump(plain))) == recipe


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=recipes, suffix=st.sampled_from([".yaml", ".yml", ".json"]))
def test_recipes_survive_files(tmp_path: Path, recipe: Recipe, suffix: str) -> None:
    path = tmp_path / f"recipe{suffix}"
    recipe.save(path)
    assert Recipe.load(path) == recipe


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_files(tmp_path: Path, name: str) -> None:
    preset(name).save(tmp_path / "p.yaml")
    assert Recipe.load(tmp_path / "p.yaml") == PRESETS[name]


def test_settings_in_a_file_may_be_merged(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("base: W8A8\noverrides:\n- &one {tensor: a, keep_float: true}\n- {<<: *one, tensor: b}\n")
    assert [one.tensor for one in Recipe.load(path).overrides] == ["a", "b"]
    assert all(one.keep_float for one in Recipe.load(path).overrides)


def test_file_holds_only_what_was_chosen(tmp_path: Path) -> None:
    W8A8.but(exclude=("op:Softmax",)).save(tmp_path / "r.yaml")
    assert (tmp_path / "r.yaml").read_text() == (
        "weights:\n  qtype: int8\n  granularity: channel\n  symmetric: true\n"
        "activations:\n  qtype: uint8\nexclude:\n- op:Softmax\n"
    )


def test_callable_pattern_can_not_be_written() -> None:
    with pytest.raises(RecipeError, match="give it by name or pattern instead"):
        W8A8.but(exclude=(lambda node: True,)).to_dict()


def test_file_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't be written: No such file"):
        W8A8.save(tmp_path / "missing" / "r.yaml")


# Presets and bases


def test_presets_are_what_their_names_say() -> None:
    assert {
        n: (str(r.weights.qtype), str(getattr(r.activations, "qtype", None))) for n, r in PRESETS.items()
    } == {
        "W8A8": ("int8", "uint8"),
        "W8A16": ("int8", "uint16"),
        "W8": ("int8", "uint8"),
        "W4": ("uint4", "None"),
        "W4A16": ("uint4", "None"),
        "FP8": ("float8e4m3fn", "float8e4m3fn"),
    }
    assert [r.is_static for r in (W8A8, W8A16, W8, W4, FP8)] == [True, True, False, False, True]
    assert W4.is_weight_only


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"'W8A9' is not a preset; did you mean 'W8A8'.*Known: W8A8, W8A16"):
        preset("W8A9")
    with pytest.raises(RecipeError, match=r"'xyz' is not a preset\. Known"):
        Recipe.from_dict({"base": "xyz"})
    with pytest.raises(RecipeError, match="base: expected the name of a preset"):
        Recipe.from_dict({"base": ["W8A8"]})


def test_base_is_changed_by_the_other_keys() -> None:
    found = Recipe.from_dict(
        {
            "base": "W8A8",
            "activations": {"method": "percentile:99.99"},
            "exclude": "op:Softmax",
            "overrides": [{"tensor": "logits", "qtype": "int16"}],
        }
    )
    assert found == W8A8.but(
        activations=Scheme(UINT8, method=Percentile(99.99)),
        exclude=("op:Softmax",),
        overrides=(Override("logits", qtype=INT16),),
    )


def test_base_keeps_what_is_not_named() -> None:
    assert Recipe.from_dict({"base": "W4A16", "weights": {"qtype": "uint8"}}).weights == Scheme(
        UINT8, PerBlock(32)
    )
    assert Recipe.from_dict({"base": "FP8"}) == FP8


@pytest.mark.parametrize(
    ("activations", "expected"),
    [
        (None, None),
        ("dynamic", DynamicScheme()),
        ({"kind": "DynamicScheme", "qtype": "int8"}, DynamicScheme(INT8)),
    ],
)
def test_base_may_change_the_kind_of_activations(activations: object, expected: object) -> None:
    assert Recipe.from_dict({"base": "W8A8", "activations": activations}).activations == expected


def test_base_may_become_static() -> None:
    with pytest.raises(RecipeError, match=r"activations\.symmetric: unknown key"):
        Recipe.from_dict({"base": "W8", "activations": {"qtype": "int8", "symmetric": True}})
    changed = {"base": "W8", "activations": {"kind": "Scheme", "qtype": "int8", "symmetric": True}}
    assert Recipe.from_dict(changed).activations == Scheme(INT8, symmetric=True)


# Errors, with their place


BAD = [
    ({}, "weights: missing"),
    (None, "expected a mapping of settings, found None"),
    ([1], "expected a mapping"),
    ({"base": "W8A8", "exlude": []}, "exlude: unknown key; did you mean 'exclude'"),
    (
        {"base": "W8A8", "activations": {"methd": "mse"}},
        "activations.methd: unknown key; did you mean 'method'",
    ),
    (
        {"base": "W8A8", "weights": {"qtype": "int9"}},
        "weights.qtype: 'int9' is not a quantized type; did you mean",
    ),
    ({"base": "W8A8", "weights": "int9"}, "weights: 'int9' is not a quantized type; did you mean 'int8'"),
    ({"base": "W8A8", "weights": 8}, "weights: expected a mapping of settings, found 8"),
    (
        {"base": "W8A8", "activations": "dynmic"},
        "activations: 'dynmic' is not a quantized type",
    ),
    ({"base": "W8A8", "activations": 3}, "activations: expected a mapping"),
    (
        {"base": "W8A8", "activations": {"kind": "Dynamic"}},
        "activations.kind: 'Dynamic' is unknown; did you mean",
    ),
    (
        {"base": "W8A8", "activations": {"method": {"entropy": {"bin": 3}}}},
        "activations.method.entropy.bin: unknown",
    ),
    (
        {"base": "W8A8", "activations": {"granularity": "chan"}},
        "activations.granularity: 'chan' is not a granularity",
    ),
    ({"base": "W8A8", "activations": {"min_range": -1}}, "activations: A smallest range of -1"),
    ({"base": "W8A8", "style": "qqq"}, "style: 'qqq' is not one of qdq, qoperator, integer"),
    ({"base": "W8A8", "exclude": [3]}, r"exclude\[0\]: expected text, found 3"),
    ({"base": "W8A8", "quantize_bias": "no"}, "quantize_bias: expected true or false, found 'no'"),
    ({"base": "W8A8", "quantize_bias": 1}, "quantize_bias: expected true or false, found 1"),
    ({"base": "W8A8", "calibration_samples": 0}, "0 calibration samples measure nothing"),
    ({"base": "W8A8", "calibration_samples": 2.5}, "calibration_samples: expected a whole number"),
    ({"base": "W8A8", "overrides": {"tensor": "x"}}, "overrides: expected a list"),
    ({"base": "W8A8", "overrides": [{}]}, r"overrides\[0\].tensor: missing"),
    (
        {"base": "W8A8", "overrides": [{"tensor": "x", "qtyp": "int8"}]},
        r"overrides\[0\].qtyp: unknown key; did you",
    ),
    (
        {"base": "W8A8", "overrides": [{"tensor": "x", "scale": 1}]},
        r"overrides\[0\]: Tensor 'x': scale and zero",
    ),
    (
        {"base": "W8A8", "overrides": [{"tensor": "x", "range": [1]}]},
        r"overrides\[0\].range: expected 2 items",
    ),
    (
        {"base": "W8A8", "overrides": [{"tensor": "x", "range": [2, 1]}]},
        r"overrides\[0\]: Tensor 'x': a range",
    ),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=[m for _, m in BAD])
def test_wrong_recipe_is_an_error_with_its_place(data: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Recipe.from_dict(data)


FILES = [
    ("a: [", "recipe.yaml is neither YAML nor JSON: .* in line 1"),
    ("a: b: c", "mapping values are not allowed here in line 1"),
    ("{", "recipe.json is neither YAML nor JSON: "),
    (b"\xff\xfe\x00", "is not text"),
    ("[" * 2_000, "neither YAML nor JSON"),
    ("a: !!int ''", "neither YAML nor JSON"),
    ("a: !!timestamp x", "neither YAML nor JSON"),
    ("? [a]\n: b", "neither YAML nor JSON"),
    ("!!python/object:os.system {}", "neither YAML nor JSON"),
    ("", "expected a mapping of settings, found None"),
    ("base: W8A8\nexlude: x", "recipe.yaml: exlude: unknown key; did you mean 'exclude'"),
    ("base: W8A8\ntarget: 0x" + "f" * 20_000, "target: expected text, found a very large int"),
    ("{? 0x" + "f" * 20_000 + " : 1}", "a very large int: unknown key"),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=[m for _, m in FILES])
def test_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str | bytes, message: str) -> None:
    name = "recipe.json" if text in ("{",) else "recipe.yaml"
    with pytest.raises(RecipeError, match=message):
        Recipe.load(written(tmp_path, text, name))


def test_deep_json_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"recipe.json"):
        Recipe.load(written(tmp_path, "[" * 200_000, "recipe.json"))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        Recipe.load(tmp_path / "nothing.yaml")


def test_yaml_that_multiplies_itself_is_refused_at_once(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    with pytest.raises(RecipeError, match="a0: unknown key"):
        Recipe.load(written(tmp_path, "\n".join(lines)))
    nested = ["base: W8A8", "include:", *(f"  - {line.partition(': ')[2]}" for line in lines)]
    with pytest.raises(RecipeError, match=r"include\[0\]: expected text"):
        Recipe.load(written(tmp_path, "\n".join(nested)))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(list(Recipe.__dataclass_fields__)), anything)
def test_any_data_gives_a_recipe_or_an_error_of_ours(key: str, data: Any) -> None:
    for whole in (data, {"base": "W8A8", key: data}, {"base": "W8A8", key: [data]}):
        try:
            assert isinstance(Recipe.from_dict(whole), Recipe)
        except OctavoError as error:
            assert str(error)


# Values


def test_changed_recipe_is_a_new_value() -> None:
    changed = W8A8.but(style=Style.QOPERATOR)
    assert changed != W8A8
    assert changed == W8A8.but(style=Style.QOPERATOR)
    assert len({W8A8, changed, W8A8.but()}) == 2


def test_unknown_field_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="A recipe has no 'exlude'; did you mean 'exclude'"):
        W8A8.but(exlude=())
    with pytest.raises(RecipeError, match=r"A recipe has no 'zzz'\. Known: weights"):
        W8A8.but(zzz=())


def test_lists_and_single_patterns_become_tuples() -> None:
    assert W8A8.but(exclude=["a"]) == W8A8.but(exclude="a") == W8A8.but(exclude=("a",))
    assert hash(W8A8.but(exclude=["a"])) == hash(W8A8.but(exclude=("a",)))
    assert W8A8.but(overrides=[Override("x")]).overrides == (Override("x"),)
    assert W8A8.but(op_types="Conv").op_types == ("Conv",)

    def every(node: object) -> bool:
        return True

    assert W8A8.but(include=every).include == (every,)


def test_override_takes_plain_numbers_lists_and_arrays() -> None:
    expected = Override("x", scale=(0.5,), zero_point=(3,))
    assert Override("x", scale=0.5, zero_point=3) == expected  # type: ignore[arg-type]
    assert Override("x", scale=[0.5], zero_point=[3]) == expected  # type: ignore[arg-type]
    assert Override("x", scale=np.array(0.5), zero_point=np.array([3], np.uint8)) == expected  # type: ignore[arg-type]
    assert Override("x", scale=np.float32(0.5), zero_point=np.uint8(3)) == expected  # type: ignore[arg-type]
    assert Recipe.from_dict(
        {"base": "W8A8", "overrides": [{"tensor": "x", "scale": 0.5, "zero_point": 3}]}
    ).overrides == (expected,)
    assert Override("x", range=[-1, 1]) == Override("x", range=(-1.0, 1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 1.0}, "go together"),
        ({"zero_point": 1}, "go together"),
        ({"scale": 1.0, "zero_point": 0, "symmetric": True}, "nothing left to decide"),
        ({"scale": 1.0, "zero_point": 0, "range": (0, 1)}, "nothing left to decide"),
        ({"scale": 0.0, "zero_point": 0}, "a scale is a positive number"),
        ({"scale": (), "zero_point": ()}, "a scale is a positive number"),
        ({"scale": float("nan"), "zero_point": 0}, "a scale is a positive number"),
        ({"scale": (1.0, 2.0), "zero_point": 0}, "2 scales but 1 zero points"),
        ({"scale": 1.0, "zero_point": 0.5}, "Override.zero_point"),
        ({"scale": "a", "zero_point": 0}, "Override.scale"),
        ({"range": (1.0, 0.0)}, "a smaller and a larger finite number"),
        ({"range": (0.0, float("inf"))}, "a smaller and a larger finite number"),
        ({"range": (0.0, 1.0, 2.0)}, "a smaller and a larger finite number"),
    ],
    ids=str,
)
def test_override_that_contradicts_itself_is_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Override("x", **settings)


def test_dynamic_activations_are_written_as_one_word(tmp_path: Path) -> None:
    text = "weights: {qtype: int4}\nactivations: dynamic\nstyle: integer\n"
    assert Recipe.load(written(tmp_path, text)) == Recipe(Scheme(INT4), DynamicScheme(), Style.INTEGER)


def test_recipes_that_earlier_versions_wrote_can_be_read() -> None:
    former = {
        "base": "W8A8",
        "absorb_activations": False,
        "at_run_time": ["op:MatMul"],
        "spelling": {"dedicated": True},
        "stored": "int8",
        "overrides": [{"tensor": "x", "qtype": "uint16", "readers": ["conv"]}],
    }
    recipe = Recipe.from_dict(former)
    assert (recipe.fuse_clamps, recipe.dynamic_nodes, recipe.compressed) == (False, ("op:MatMul",), INT8)
    assert recipe.writing.dedicated
    assert recipe.overrides[0].consumers == ("conv",)
    assert W8A8.but(stored=INT8) == W8A8.but(compressed=INT8)


def test_plain_spellings_are_read_wherever_a_value_is_expected() -> None:
    activations = W8A8.activations
    assert isinstance(activations, Scheme)
    assert activations.but(method="entropy").method == Entropy()
    assert activations.but(method="percentile:99.9").method == Percentile(99.9)
    assert W8A8.weights.but(granularity="block:32").granularity == PerBlock(32)
    assert Scheme("int8", "channel") == Scheme(INT8, PerChannel())  # type: ignore[arg-type]
    assert W8A8.but(activations="int8").activations == activations.but(qtype=INT8)
    assert W8A8.but(activations="none").activations is None
    dynamic = W8A8.but(activations="dynamic")
    assert (dynamic.activations, dynamic.style) == (DynamicScheme(), Style.INTEGER)
    assert W8A8.but(weights="uint8").weights.symmetric is False
    assert W8A8.but(style="qoperator").style is Style.QOPERATOR
    assert W8A8.but(op_types="Conv, MatMul").op_types == ("Conv", "MatMul")
    assert W8A8.but(exclude="head").exclude == ("head",)
    assert W8A8.but(overrides=[{"tensor": "x", "keep_float": True}]).overrides == (Override("x", True),)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: Scheme(INT8).but(method="entrpy"), "entropy"),
        (lambda: Scheme(INT8).but(metod="entropy"), "did you mean 'method'"),
        (lambda: W8A8.but(activations="int9"), "int9"),
        (lambda: W8A8.but(style="qdk"), "qdq"),
    ],
)
def test_a_misspelt_plain_value_is_one_sentence(change: Callable[[], Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        change()


def test_a_setting_that_is_given_twice_is_an_error_in_json_too(tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text('{"base": "W8A8", "base": "W4"}')
    with pytest.raises(RecipeError, match=r"recipe\.json: 'base' is given twice; remove one"):
        Recipe.load(file)


def test_a_recipe_of_floats_alone_quantizes_nothing() -> None:
    half = Recipe.from_dict({"half": "fp16:compute", "exclude": ["head"]})
    assert half.op_types == () and half.activations is None and half.exclude == ("head",)
    assert half.half is not None and half.half.compute is True
    both = Recipe.from_dict({"half": "bf16", "compressed": "int8"})
    assert both.op_types == () and both.compressed is not None and both.half is not None
    assert Recipe.from_dict({"compressed": "int8"}) == COMPRESSED
    with pytest.raises(RecipeError, match="weights: missing"):
        Recipe.from_dict({"half": "fp16", "steps": ["clip"]})
