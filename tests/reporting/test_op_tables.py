"""The op table and the targets in words, and the page generated from them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from octavo.ops.rule import OpRule
from octavo.ops.table import RULES
from octavo.reporting.op_tables import op_data, op_detail, op_table, target_data, target_detail, target_table
from octavo.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]


def script() -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    assert [path.name for path in script().stale()] == [], "run 'make docs'"


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: f"{rule.domain}:{rule.op_type}")
def test_every_row_has_words(rule: OpRule) -> None:
    assert rule.op_type in op_detail(rule)
    assert op_data(rule)["op_type"] == rule.op_type


def test_the_op_table_has_a_line_for_each_row() -> None:
    assert len(op_table(RULES.values()).splitlines()) == len(RULES) + 2


def test_every_target_has_words() -> None:
    for target in TARGETS.values():
        assert target.summary in target_detail(target)
        assert target_data(target)["name"] == target.name
        assert target.name in target_table(TARGETS.values())
