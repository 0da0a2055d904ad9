"""Expressions match as Python's do, in time that grows with the text and not with its square or worse."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core import linear_regex
from octavo.core.linear_regex import LinearRegex
from octavo.errors import RecipeError

PATTERNS = [
    "", "a", "^a$", "a|b", "(a+)+$", "^(a|aa)*b$", "a{2,3}", "a{2,}b", "[a-c]+", "[^a-c]", "^[^/]*/conv\\d+$",
    ".*attn.*(q|k)_proj", "(?i)CONV", "\\bconv\\b", "\\Bv", "^(?!.*head).*$", "(?=.*b)a", "a??b",
    "(?:ab|ba)*$", "x*", "\\S+\\s\\S", "^/model/layers\\.(1|2)/", "a.c", "(?s)a.c", "(?m)^b$", "\\Aab\\Z",
    "(?i:A)b", "a(b(c)?)?d", "[\\w-]+", "[^\\W\\d]", "(|a)+b", "\\w+\\.\\d", "$",
]  # fmt: skip
TEXTS = [
    "", "a", "b", "aaab", "abc", "ABC", "/model/layers.1/attn/q_proj", "/conv12", "conv v", "head", "a\nc",
    "ab", "ba", "abba", "xconv", "a.1", "a b", "acd", "abcd", "ad", "-", "_", "é", "aab\n", "b\na",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_agrees_with_python(pattern: str) -> None:
    mine, python = LinearRegex(pattern), re.compile(pattern)
    assert [mine.search(text) for text in TEXTS] == [python.search(text) is not None for text in TEXTS]


_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\w", "^", "$", "\\b"])
_EXPRESSIONS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{1,2}", "*?"])).map(lambda p: f"(?:{p[0]}){p[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(_EXPRESSIONS, st.text("ab\n_", max_size=6))
def test_agrees_with_python_on_any_expression(pattern: str, text: str) -> None:
    assert LinearRegex(pattern).search(text) == (re.search(pattern, text) is not None)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a|a)*$", "a*a*a*a*a*a*a*a*c", "(.*)*x(.*)*y"])
def test_explosive_expression_ends(pattern: str) -> None:
    assert not LinearRegex(pattern).search("a" * 5_000 + "!")


@pytest.mark.parametrize("pattern", ["(", "[", "a**", "(a)\\1", "(?<=a)b", "(?:a{1000}){1000}", "a" * 6_000])
def test_what_is_no_expression_or_can_not_be_bounded_is_refused(pattern: str) -> None:
    with pytest.raises(RecipeError, match="pattern"):
        LinearRegex(pattern)


def test_nested_lookahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_regex, "_MOST_STEPS", 100_000)
    with pytest.raises(RecipeError, match="too long"):
        LinearRegex("(?=(?=(?=.*x).*x).*x)y").search("a" * 20_000)
