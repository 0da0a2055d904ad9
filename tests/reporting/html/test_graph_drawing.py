"""The drawing: times are shares of all that ran."""

from __future__ import annotations

import pytest

from octavo.reporting.html.graph_drawing import drawing
from octavo.reporting.html.report_parts import sides
from reporting.html import hostile


def test_time_of_no_operator_is_part_of_the_whole() -> None:
    large = hostile.large(2)
    first = large["details"]["graph"]["nodes"][0]["name"]
    bench = hostile.bench([f"{first}_token_7", "fused under another name"])
    bench["models"][-1]["nodes"].append({"name": "q", "op_type": "QuantizeLinear", "seconds": 7e-4})
    found = drawing(sides([large, bench])[0])
    assert found is not None
    assert found["nodes"][0]["us"] == pytest.approx(100.0)
    assert "us" not in found["nodes"][1]
    assert found["us"] == pytest.approx(100.0 + 200.0 + 700.0)


def test_without_a_measurement_there_are_no_times() -> None:
    found = drawing(sides([hostile.large(2)])[0])
    assert found is not None
    assert "us" not in found
