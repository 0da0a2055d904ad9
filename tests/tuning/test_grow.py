"""How many layers stay in float, by what each loses and by what that did to the outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest

import octavo
from octavo.tuning.candidates import Candidate
from octavo.tuning.grow import Growth
from octavo.tuning.requirements import Requirements
from octavo.tuning.sensitivity import Layer
from octavo.tuning.trial import Trial

START = Trial(Candidate("static", octavo.W8A8, ""), sqnr_db=17.0)  # half the noise has to go for 20 dB


def growth(*decibels: float, least: float | None = None) -> Growth:
    layers = [Layer(f"layer{i}", "Conv", one) for i, one in enumerate(decibels)]
    return Growth(START, layers, Requirements(min_sqnr=least))


@pytest.mark.parametrize(
    ("decibels", "count"),
    [
        ((10.0, 30.0, 30.0, 30.0), 1),  # the first has 97 % of the noise
        ((20.0, 20.0, 20.0, 20.0), 2),  # each has a quarter
        ((20.0,) * 16, 8),
    ],
)
def test_the_first_trial_has_as_many_layers_in_float_as_hold_what_is_too_much(
    decibels: tuple[float, ...], count: int
) -> None:
    found = growth(*decibels)
    assert found.first == count
    assert found.candidate(count).recipe.exclude == tuple(f"layer{i}" for i in range(count))


def test_where_no_number_of_layers_would_do_it_begins_with_one() -> None:
    assert growth(20.0, 20.0, 20.0, 20.0, least=200.0).first == 1


def test_what_took_away_its_share_may_get_there_and_what_took_away_nothing_may_not() -> None:
    found = growth(*[20.0] * 16)
    assert found.may_get_there(replace(START, sqnr_db=18.25), 4)  # a quarter of the noise is gone
    assert not found.may_get_there(replace(START, sqnr_db=17.0), 8)
    assert found.may_get_there(replace(START, sqnr_db=17.0), 1)  # one of sixteen tells nothing yet
