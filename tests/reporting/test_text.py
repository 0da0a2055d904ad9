"""Safe names, sizes, columns."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.reporting.text import clean, columns, many, markdown_table, printable, size, some, tally


@pytest.mark.parametrize(
    "name",
    ["\x1b[31mred", "a\nb", "a\rb", "bell\x07", "\x9b1m", "\u202eevil", "\u2028line", "nul\x00", "tab\there"],
)
def test_clean_leaves_nothing_that_a_terminal_obeys(name: str) -> None:
    shown = clean(name)
    assert shown.isprintable()


@given(st.text())
def test_clean_names_are_printable_or_spaces(name: str) -> None:
    import unicodedata

    assert not {unicodedata.category(c) for c in clean(name)} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_clean_shortens_long_names_in_the_middle() -> None:
    shown = clean("a" * 500 + "z" * 500)
    assert len(shown) <= 200
    assert shown.startswith("a")
    assert shown.endswith("z")
    assert "…" in shown


def test_printable_keeps_lines() -> None:
    assert printable("a\x1b[0m\nb") == "a[0m\nb"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (229005, "229 kB"),
        (97_800_000, "97.8 MB"),
        (999_600_000, "1 GB"),
        (2_500_000_000, "2.5 GB"),
        (3_000_000_000_000_000, "3000 TB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert size(count) == text


def test_counts_read_well() -> None:
    assert many(1, "node") == "1 node"
    assert many(2, "node") == "2 nodes"
    assert tally(Counter({"Add": 16, "Conv": 53, "Gemm": 1})) == "53 Conv, 16 Add, 1 Gemm"
    assert some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert some([""]) == "(no name)"


def test_columns_align_numbers_to_the_right() -> None:
    assert columns([[1, "one"], [10, "ten"]], ["n", "name"]).splitlines() == [
        " n  name",
        "--  ----",
        " 1  one",
        "10  ten",
    ]


def test_no_rows_make_no_table() -> None:
    assert columns([], ["a"]) == ""


def test_markdown_cells_can_not_break_the_table() -> None:
    table = markdown_table([["a|b", "<script>"]], ["x", "y"])
    assert table.splitlines()[2] == r"| a\|b | &lt;script> |"
