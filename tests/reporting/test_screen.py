"""Text for terminals of some width: no broken word, tables stay tables."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.reporting.screen import fit
from octavo.reporting.text import columns

HEAD = ["", "tried", "speed to float", "SQNR dB", "same class", "size"]
ROWS = [
    [
        "→",
        "static, the weakest layers kept in float",
        "1.52 × (1.48 … 1.60)",
        "22.5",
        "98.3 % ± 5",
        "3.69 MB",
    ],
    ["", "dynamic", "0.82 × (0.80 … 0.86)", "30.1", "99.0 % ± 4", "3.61 MB"],
]


def lines(text: str, width: int) -> list[str]:
    return [line.text for line in fit(text, width)]


def test_what_fits_is_left_alone() -> None:
    text = f"chosen: static\n\n{columns(ROWS, HEAD)}\n2 more\n"
    assert "\n".join(lines(text, 200)) == text


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_longer_than_the_terminal_and_no_word_is_broken(width: int) -> None:
    found = lines(columns(ROWS, HEAD), width)
    assert all(len(line) <= width for line in found)
    words = {word for row in ROWS for cell in row for word in cell.split()}
    assert words <= set(" ".join(found).split())


def test_numbers_stay_with_their_units_and_intervals_in_one_piece() -> None:
    text = "\n".join(lines(columns(ROWS, HEAD), 66))
    assert "(1.48 … 1.60)" in text
    assert "1.52 ×" in text
    assert "98.3 % ± 5" in text
    assert "3.69 MB" in text


def test_long_names_in_a_table_lose_their_middle() -> None:
    name = "/features/features.17/conv/conv.0/conv.0.0/Conv_output_0"
    (row,) = lines(columns([["12.1", name]], ["local dB", "tensor"]), 40)[2:]
    assert re.search(r"/features\S*…\S*output_0", row)
    assert len(row) <= 40


def test_prose_hangs_and_paths_can_be_copied() -> None:
    path = "/a/very/long/path/" + "x" * 60
    assert lines(f"written: {path}", 40) == ["written:", f"         {path}"]
    assert lines("   why: " + "word " * 12, 40)[1].startswith("        word")
    assert lines("format        " + "value " * 8, 40)[1].startswith(" " * 14 + "value")


def test_a_table_for_which_there_is_no_room_becomes_records() -> None:
    found = lines(columns(ROWS, HEAD), 30)
    assert "  tried: dynamic" in found or "tried: dynamic" in found
    assert all(len(line) <= 30 for line in found)


@given(st.text(alphabet=st.characters(blacklist_categories=("C", "Z")) | st.just(" "), max_size=300))
def test_every_word_of_prose_is_kept(text: str) -> None:
    assert " ".join(lines(text, 30)).split() == text.split()
