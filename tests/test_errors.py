from __future__ import annotations

import pytest

from octavo import errors
from octavo.errors import DataError, OctavoError, closest


def test_closest_names_the_nearest_first() -> None:
    assert closest("exclud", ["include", "exclude", "style"]).startswith("; did you mean 'exclude'")


def test_closest_joins_two_with_or() -> None:
    assert closest("int", ["int4", "int8"]) in (
        "; did you mean 'int8' or 'int4'?",
        "; did you mean 'int4' or 'int8'?",
    )


def test_closest_names_no_more_than_asked() -> None:
    assert closest("int", ["int4", "int8", "int16", "int2"], count=1).count("int") == 1


def test_closest_names_each_once() -> None:
    assert closest("--quick", ["--quiet", "--quiet", "--style"]).count("--quiet") == 1


def test_closest_is_silent_where_nothing_is_near() -> None:
    assert closest("zzz", ["include", "exclude"]) == ""
    assert closest("anything", []) == ""


def test_closest_takes_any_iterable() -> None:
    assert closest("styl", (name for name in ("style",))) == "; did you mean 'style'?"


@pytest.mark.parametrize(
    "name", ["RecipeError", "ModelError", "DataError", "TableError", "OutputError", "IsolationError"]
)
def test_every_error_is_an_OctavoError(name: str) -> None:
    assert issubclass(getattr(errors, name), OctavoError)
    assert name in (errors.__doc__ or "")


def test_words_of_another_library_end_in_one_full_stop() -> None:
    for words, due in (
        ("the header differs", "the header differs."),
        ("the header differs..", "the header differs."),
        ("'x.npy' differ..", "'x.npy' differ."),
        ("and so on...", "and so on..."),
        ("look in ..", "look in .."),
    ):
        assert str(DataError(words)) == due
