"""Lint finds every planted fault and nothing in the healthy twins; what it fixes runs and is equivalent."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import octavo
from octavo.linting import RULES
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import Session

from .planted import CASES, Case

FIXABLE = [case for case in CASES if case.fixable]


def outputs(model: onnx.ModelProto | octavo.Lint, *, optimize: bool) -> dict[str, np.ndarray]:
    source = model.model if isinstance(model, octavo.Lint) else model.SerializeToString()
    session = Session.open(source, optimize=optimize)
    feeds = sample_inputs(session.inputs, seed=3)
    return session.run({name: (array * 2).astype(array.dtype) for name, array in feeds.items()})


def close(one: dict[str, np.ndarray], other: dict[str, np.ndarray], steps: float) -> None:
    for name, array in one.items():
        np.testing.assert_allclose(other[name], array, atol=steps, rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_fault_is_found(case: Case) -> None:
    found = octavo.lint(case.faulty(), target=case.target)
    assert case.rule in found.rules, str(found)
    one = next(f for f in found.findings if f.rule == case.rule)
    assert one.node
    assert one.consequence
    assert one.fix


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_found_in_the_healthy_twin(case: Case) -> None:
    assert not octavo.lint(case.healthy(), target=case.target).findings


@pytest.mark.parametrize("case", FIXABLE, ids=str)
def test_a_fixed_model_is_clean_runs_and_is_equivalent(case: Case) -> None:
    fixed = octavo.lint(case.faulty(), target=case.target, fix=True)
    assert case.rule in {one.rule for one in fixed.fixed}
    assert not fixed.findings, str(fixed)
    want = outputs(case.healthy(), optimize=False)
    # Where conversions are merged or a bias is rounded anew, a value on a tie may fall on the other step.
    steps = 0.1001 if case.rule in ("OCT201", "OCT203", "OCT204") else 1e-5
    close(want, outputs(fixed, optimize=False), steps)
    close(want, outputs(fixed, optimize=True), 0.1001 if case.rule != "OCT406" else 1e-5)
    if case.runs:
        close(outputs(case.faulty(), optimize=False), outputs(fixed, optimize=False), steps)


def test_every_rule_has_a_planted_fault() -> None:
    assert {case.rule for case in CASES} == set(RULES)
    assert len(CASES) >= 25


def test_every_rule_has_a_title_and_words() -> None:
    for name, rule in RULES.items():
        assert name.startswith("OCT")
        assert rule.title
        assert rule.check.__doc__
