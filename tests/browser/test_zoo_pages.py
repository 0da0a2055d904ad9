"""The pages of real models open like those of small ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import octavo
from browser import chromium
from octavo.reporting.html import report

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
MODELS = {
    "yolov8n": ZOO / "models" / "yolov8n" / "model.onnx",
    "all_minilm_l6_v2": ZOO.parents[1] / "zoo_models" / "all_minilm_l6_v2" / "model.onnx",
}

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing())),
]


@pytest.mark.parametrize("name", MODELS)
def test_the_page_of_a_real_model_opens_without_complaint(name: str, browser: Any, tmp_path: Path) -> None:
    if not MODELS[name].exists():
        pytest.skip(f"{name} is not here")
    result = octavo.quantize(
        MODELS[name], octavo.random_data(1), histograms=True, verify=False, effort="plain"
    )
    target = tmp_path / "page.html"
    report(result, output=target)
    assert target.stat().st_size < 5_000_000
    page, complaints = browser.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(target.as_uri())
    page.wait_for_selector("html[data-ready]")
    page.locator("#graph tbody button").nth(20).click()
    page.locator("#tensors-and-plan tbody button").nth(5).click()
    page.locator("#tensor .chart canvas").wait_for()
    assert page.locator("#graph .picked dt").count() >= 1
    assert complaints == []
    page.close()
