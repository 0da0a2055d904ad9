from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.codec import decode, encode, method_text, parse_method
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qtypes import INT4, UINT8, QType
from octavo.core.scheme import MSE, Auto, Distribution, Entropy, Method, MinMax, Percentile, Scheme
from octavo.errors import OctavoError, RecipeError

methods = st.one_of(
    st.builds(MinMax, st.booleans(), st.none() | st.floats(0, 1)),
    st.builds(Percentile, st.floats(50, 100, exclude_min=True)),
    st.builds(Entropy, st.integers(1, 4096), st.integers(1, 256)),
    st.sampled_from([MSE(), Distribution(), Auto()]),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Circle:
    TAGGED: ClassVar[bool] = True
    radius: float


@dataclass(frozen=True)
class Square:
    TAGGED: ClassVar[bool] = True
    side: float
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Drawing:
    shape: Circle | Square
    names: tuple[str, ...] = ()
    corner: tuple[float, int] | None = None
    table: dict[str, int] | None = None
    grain: Granularity | None = None
    method: Method | None = None
    kind: QType | None = None
    rest: Any = None


# Methods


@given(methods)
def test_text_of_a_method_parses_to_it(method: Method) -> None:
    assert parse_method(method_text(method)) == method
    assert decode(Method, encode(method)) == method


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (MinMax(), "minmax"),
        (Percentile(99.9), "percentile:99.9"),
        (Percentile(), "percentile"),
        (MinMax(average=True), {"minmax": {"average": True}}),
        (Entropy(128, 64), {"entropy": {"bins": 128, "levels": 64}}),
    ],
    ids=str,
)
def test_method_is_written_short(method: Method, text: object) -> None:
    assert method_text(method) == text


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("entrpy", "'entrpy' is not a calibration method; did you mean 'entropy'"),
        ("xyz", r"'xyz' is not a calibration method\. Known: minmax"),
        ("percentile:abc", "percentile: percent must be a number or auto, not 'abc'"),
        ("percentile:nan", "percentile: percent must be a number"),
        ("percentile:20", "percentile: A percentile of 20.0 makes no range"),
        ("entropy:percent=5", "entropy has no option 'percent'"),
        ("auto:5", "auto has no option '5'"),
        ({"minmax": {"avrage": True}}, "minmax.avrage: unknown key; did you mean 'average'"),
        ({"minmax": {"average": "yes"}}, "minmax.average: expected true or false"),
        ({"minmax": 5}, "minmax: expected a mapping"),
        ({"minmax": {}, "entropy": {}}, "expected a calibration method"),
        (5, "expected a calibration method"),
        (None, "expected a calibration method"),
        ({5: {}}, "5 is not a calibration method"),
    ],
    ids=str,
)
def test_wrong_method_is_an_error_with_its_place(data: object, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_method(data)
    with pytest.raises(RecipeError, match=r"^a\.b[:.]"):
        parse_method(data, "a.b")


# Values


def test_values_survive_a_round_trip() -> None:
    for value in (
        Drawing(Circle(1.5)),
        Drawing(
            Square(2.0, Colour.BLUE), ("a", "b"), (1.0, 2), {"x": 1}, PerBlock(32, 1), MSE(), INT4, [1, "a"]
        ),
        Drawing(Square(2.0), grain=PerTensor(), method=MinMax(average=True)),
    ):
        assert decode(Drawing, encode(value)) == value


@given(
    st.builds(
        Scheme,
        st.sampled_from([UINT8, INT4]),
        st.sampled_from([PerTensor(), PerChannel(), PerChannel(-1), PerBlock(16, 0)]),
        st.booleans(),
        methods,
        st.none() | st.floats(0, 1),
        st.booleans(),
        st.booleans(),
    )
)
def test_schemes_survive_a_round_trip(scheme: Scheme) -> None:
    assert decode(Scheme, encode(scheme)) == scheme


def test_defaults_are_not_written() -> None:
    assert encode(Scheme(UINT8)) == {"qtype": "uint8"}
    assert encode(Square(1.0)) == {"kind": "Square", "side": 1.0}


def test_arrays_and_sets_are_written_as_lists() -> None:
    assert encode({"a": np.array([[1, 2]]), "b": np.float32(0.5), "c": {"y", "x"}}) == {
        "a": [[1, 2]],
        "b": 0.5,
        "c": ["x", "y"],
    }


def test_what_can_not_be_written_is_an_error() -> None:
    with pytest.raises(RecipeError, match="can't be written to a file"):
        encode({"a": [lambda: None]})


def test_number_may_be_whole_or_text_where_a_float_is_wanted() -> None:
    assert decode(float, 3) == 3.0
    assert decode(float, "1e-4") == 1e-4


def test_one_item_needs_no_brackets() -> None:
    assert decode(tuple[str, ...], "a") == ("a",)
    assert decode(tuple[float, ...], 0.5) == (0.5,)
    assert decode(list[int], 3) == [3]


def test_values_already_made_are_kept() -> None:
    assert decode(QType, INT4) is INT4
    assert decode(Colour, Colour.RED) is Colour.RED
    assert decode(Granularity, PerChannel(1)) == PerChannel(1)


def test_kind_may_be_named_where_it_is_known_already() -> None:
    assert decode(Circle, {"kind": "Circle", "radius": 1}) == Circle(1.0)


BAD = [
    ({}, "shape: missing"),
    ([], "expected a mapping of settings"),
    ("x", "expected a mapping of settings, found 'x'"),
    ({"shape": {"radius": 1}}, "shape.kind: missing; write one of Circle, Square"),
    ({"shape": {"kind": "Circl", "radius": 1}}, "shape.kind: 'Circl' is unknown; did you mean 'Circle'"),
    ({"shape": {"kind": ["Circle"]}}, r"shape.kind: \['Circle'\] is unknown.* Known: Circle, Square"),
    ({"shape": {"kind": "Circle"}}, "shape.radius: missing"),
    ({"shape": {"kind": "Circle", "raduis": 1}}, "shape.raduis: unknown key; did you mean 'radius'"),
    ({"shape": {"kind": "Circle", "radius": True}}, "shape.radius: expected a finite number, found True"),
    ({"shape": {"kind": "Circle", "radius": float("inf")}}, "shape.radius: expected a finite number"),
    ({"shape": {"kind": "Circle", "radius": 10**400}}, "shape.radius: expected a finite number"),
    ({"shape": {"kind": "Circle", "radius": 1 << 20000}}, "shape.radius: expected a finite number"),
    (
        {"shape": {"kind": "Square", "side": 1, "colour": "rad"}},
        "shape.colour: 'rad' is not one of red, blue; did",
    ),
    ({"shape": {"kind": "Square", "side": 1, "colour": 7}}, r"shape.colour: 7 is not one of red, blue\."),
    ({"shape": None}, "shape: expected a mapping"),
    ({"names": [1]}, r"names\[0\]: expected text, found 1"),
    ({"names": {"a": 1}}, "names: expected a list"),
    ({"corner": [1.0]}, "corner: expected 2 items"),
    ({"corner": [1.0, 2.5]}, r"corner\[1\]: expected a whole number, found 2.5"),
    ({"corner": [1.0, True]}, r"corner\[1\]: expected a whole number"),
    ({"corner": [1.0, 1 << 63]}, r"corner\[1\]: expected a whole number, found 9223372036854775808"),
    ({"corner": [1.0, 1 << 20000]}, r"corner\[1\]: expected a whole number, found a very large int"),
    ({"corner": "ab"}, "corner: expected a list"),
    ({"table": []}, "table: expected a mapping"),
    ({"table": {"x": "y"}}, "table.x: expected a whole number"),
    ({"table": {1: 1}}, "table: expected a mapping by name"),
    ({"grain": "chanel"}, "grain: 'chanel' is not a granularity"),
    ({"grain": 5}, "grain: expected a granularity"),
    ({"grain": "block:0"}, "grain: A block of 0"),
    ({"method": "mimax"}, "method: 'mimax' is not a calibration method; did you mean 'minmax'"),
    ({"kind": "unt8"}, "kind: 'unt8' is not a quantized type; did you mean 'uint8'"),
    ({"kind": 8}, "kind: expected the name of a quantized type"),
    ({1 << 20000: 5}, "a very large int: unknown key"),
    ({("a", "b"): 5}, "unknown key"),
]


@pytest.mark.parametrize(("data", "message"), BAD, ids=[m for _, m in BAD])
def test_wrong_data_is_an_error_with_its_place(data: Any, message: str) -> None:
    if isinstance(data, dict) and "shape" not in data and data:
        data = {"shape": {"kind": "Circle", "radius": 1}, **data}
    with pytest.raises(RecipeError, match=message):
        decode(Drawing, data)


@given(anything, anything)
def test_any_data_gives_a_value_or_an_error_of_ours(first: Any, second: Any) -> None:
    for data in (
        first,
        {"shape": first},
        {"shape": {"kind": "Circle", "radius": 1}, "method": first, "grain": second},
    ):
        try:
            assert isinstance(decode(Drawing, data), Drawing)
        except OctavoError as error:
            assert str(error)


def test_messages_stay_short_whatever_the_data() -> None:
    deep: Any = []
    for _ in range(50_000):
        deep = [deep]
    laughs: Any = "ha"
    for _ in range(60):
        laughs = [laughs] * 10
    for data in (deep, laughs, "x" * 1_000_000, {"a": deep}):
        with pytest.raises(RecipeError) as caught:
            decode(int, data, "place")
        assert len(str(caught.value)) < 1000
    while deep:
        deep = deep.pop()


def test_type_that_can_not_be_read_is_named() -> None:
    with pytest.raises(RecipeError, match="The value: can't read 1 as <class 'complex'>"):
        decode(complex, 1)
