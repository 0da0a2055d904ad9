"""A short soak; the long one is ``make soak``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "soak.py"


@pytest.mark.skipif(sys.platform != "linux", reason="memory and descriptors are read from /proc")
def test_thirty_quantizations_leave_nothing_behind() -> None:
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    soak = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = soak
    spec.loader.exec_module(soak)
    marks = soak.soak(30, marks=6)
    assert [mark.runs for mark in marks] == [5, 10, 15, 20, 25, 30]
    assert not soak.growth(marks)
    assert marks[-1].temporary == 0
