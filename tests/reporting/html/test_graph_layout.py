"""Where operators are drawn."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.reporting.html.graph_drawing import COLUMN, layered

EDGES = st.integers(2, 24).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(
            st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda e: e[0] < e[1]),
            unique=True,
            max_size=40,
        ),
    )
)


@settings(max_examples=60, deadline=None)
@given(EDGES)
def test_edges_go_down_and_operators_do_not_overlap(case: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = case
    layout = layered(count, edges)
    assert len(layout.points) == count
    assert all(layout.points[a][1] < layout.points[b][1] for a, b in edges)
    for (x, y), (other_x, other_y) in itertools.combinations(layout.points, 2):
        assert y != other_y or abs(x - other_x) >= COLUMN - 0.2


def test_a_chain_is_a_straight_line() -> None:
    layout = layered(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    assert len({x for x, _ in layout.points}) == 1
    assert not layout.bends


def test_an_edge_past_others_bends_around_them() -> None:
    layout = layered(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    (bends,) = layout.bends.values()
    assert len(bends) == 2
    assert all(abs(x - layout.points[1][0]) > COLUMN / 2 for x, _ in bends)


def test_a_very_long_edge_is_drawn_straight() -> None:
    edges = [(i, i + 1) for i in range(40)] + [(0, 40)]
    assert len(edges) - 1 not in layered(41, edges).bends


def test_what_has_no_input_stands_above_its_reader() -> None:
    layout = layered(5, [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert layout.points[3][1] == layout.points[2][1]


def test_nothing_makes_an_empty_layout() -> None:
    assert layered(0, []).points == []
