"""What a result says about itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import (
    Bounded,
    Constant,
    Derived,
    Dynamic,
    Fixed,
    Key,
    Measured,
    Plan,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8, UINT16
from octavo.core.recipe import W8A8, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.reporting.plan_tables import entry_text, plan_table
from octavo.reporting.summary import headline, kept_in_float, markdown, produced, summary, type_lines

X, W, Y, B = Key("x"), Key("w", "conv"), Key("y"), Key("b", "conv")
WEIGHT = Constant(Scheme(INT8, PerChannel(0), symmetric=True))


def plan_of(**changes: object) -> Plan:
    values: dict[str, object] = {
        "style": Style.QDQ,
        "entries": {
            X: Measured(Scheme(UINT8)),
            W: WEIGHT,
            Y: Shared("x"),
            B: Derived(("x", None), ("w", "conv")),
        },
        "nodes": {"conv": Quantized("Conv", "Conv"), "move": Quantized("Reshape", "Reshape")},
        "fused": {"relu": "the range of y starts at zero"},
        "skipped": (
            Skipped("e1", "Erf", "no rule"),
            Skipped("s1", "Softmax", "slow"),
            Skipped("s2", "Softmax", "slow"),
        ),
        "notes": ("mind the gap",),
        **changes,
    }
    return Plan(**values)  # type: ignore[arg-type]


def params(qtype: object = UINT8, granularity: object = None) -> QParams:
    return QParams(np.ones(()), np.zeros(()), qtype, granularity or PerTensor())  # type: ignore[arg-type]


@dataclass
class Outcome:
    plan: Plan = field(default_factory=plan_of)
    params: dict[Key, QParams] = field(default_factory=dict)
    recipe: Recipe | None = W8A8
    notes: tuple[str, ...] = ()
    float_bytes: int = 400_000
    bytes: int = 100_000


def test_the_headline_counts_ops_and_names_types() -> None:
    assert headline(plan_of()) == "1 Conv, 1 Reshape quantized (uint8 × int8/channel, qdq)"
    assert headline(plan_of(nodes={})) == "nothing quantized"


def test_what_stays_float_is_grouped_by_reason_most_frequent_first() -> None:
    groups = kept_in_float(plan_of().skipped)
    assert [(g.reason, g.count) for g in groups] == [("slow", 2), ("no rule", 1)]
    assert str(groups[0]) == "2 Softmax: slow (s1, s2)"


def test_reasons_that_differ_in_numbers_alone_are_told_once() -> None:
    unlike = ("16 values, too few", "2.5e-05 values, too few", "32 bytes")
    groups = kept_in_float([Skipped(f"c{i}", "Conv", reason) for i, reason in enumerate(unlike)])
    assert [str(group) for group in groups] == [
        "2 Conv: 16 values, too few, or the like (c0, c1)",
        "1 Conv: 32 bytes (c2)",
    ]


def test_the_summary_says_all_there_is() -> None:
    text = summary(Outcome(notes=("a remark", "mind the gap")))
    assert "3 kept in float:" in text
    assert "1 Relu or Clip fused" in text
    assert "400 kB → 100 kB (0.25 ×)" in text
    assert text.count("mind the gap") == 1
    assert "note: a remark" in text


def test_the_summary_of_an_empty_plan_is_no_crash() -> None:
    empty = Plan(Style.INTEGER, {}, {})
    assert "nothing quantized" in summary(Outcome(plan=empty, float_bytes=0, bytes=0))


def test_many_reasons_are_cut_short() -> None:
    plan = plan_of(skipped=tuple(Skipped(f"n{i}", "Add", "reason" + "s" * i) for i in range(40)))
    text = summary(Outcome(plan=plan))
    assert "25 more, for 25 other reasons" in text


def test_the_type_lines_sets_what_was_made_beside_what_was_requested() -> None:
    assert type_lines(Outcome()) == [
        "weights: int8 per channel (1 of 1)",
        "activations: uint8 (2 of 2)",
    ]
    silently_wider = Outcome(params={X: params(UINT16), W: params(INT8, PerTensor()), Y: params(UINT16)})
    assert type_lines(silently_wider) == [
        "weights: int8 per channel (0 of 1), int8 (1)",
        "activations: uint8 (0 of 2), uint16 (2)",
    ]
    assert type_lines(Outcome(recipe=None)) == []


def test_dynamic_and_bounded_and_given_activations_are_counted() -> None:
    plan = plan_of(
        entries={
            Key("a"): Dynamic(),
            Key("b"): Bounded(Scheme(UINT8), 0.0, 1.0),
            Key("c"): Fixed(Scheme(INT8), (0.1,), (0,)),
        }
    )
    assert produced(plan)[0] == {"dynamic uint8": 1, "uint8": 1, "int8": 1}


def test_hostile_names_are_shown_harmless() -> None:
    plan = plan_of(skipped=(Skipped("\x1b[2Jx\ny", "Er\x1bf", "bad \x07 thing"),), notes=("\x1b]0;t\x07",))
    for text in (summary(Outcome(plan=plan)), plan_table(plan, tensors=True), markdown(Outcome(plan=plan))):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_the_report_is_markdown_that_names_cannot_break() -> None:
    plan = plan_of(skipped=(Skipped("a|b", "Erf", "<img src=x>"),))
    text = markdown(Outcome(plan=plan), "<b>")
    assert "a\\|b" in text
    assert "<img" not in text
    assert "<b>" not in text


def test_plan_table_lists_nodes_and_tensors() -> None:
    text = plan_table(plan_of())
    assert "4 tensors" in text
    assert "opset" not in text
    assert "need opset 21" in plan_table(plan_of(entries={X: Measured(Scheme(UINT16))}))
    assert "same as x" in plan_table(plan_of(), tensors=True)


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (Measured(Scheme(UINT8)), "uint8 measured by min/max"),
        (Bounded(Scheme(UINT8), 0.0, 1.0), "uint8 bounded by 0 … 1"),
        (Shared("x", "n"), "same as x → n"),
        (Derived(("x", None), ("w", None)), "int32, scale of x × scale of w"),
        (Fixed(Scheme(INT8), (1.0,), (0,)), "int8 as given"),
        (Constant(Scheme(INT8, PerBlock(32, 0))), "int8/block:32 from its values (rtn)"),
        (Dynamic(), "uint8, range found while the model runs"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_entry_has_words(entry: object, text: str) -> None:
    assert entry_text(entry) == text  # type: ignore[arg-type]
