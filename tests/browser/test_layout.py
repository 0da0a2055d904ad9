"""The page of every verb, narrow and wide: no text lies on another, and nothing scrolls sideways."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import octavo
from browser import chromium
from octavo.reporting.html import report

pytestmark = pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))

EXAMPLE = Path(__file__).parents[2] / "examples" / "fashion_mnist"
SCRIPT = Path(__file__).with_name("overlaps.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each verb, of what it measures on the example."""
    folder = tmp_path_factory.mktemp("layout")
    model, data, test = (str(EXAMPLE / name) for name in ("model.onnx", "calibration.npz", "test.npz"))
    tuned = octavo.tune(
        model,
        data,
        samples=32,
        effort="standard",
        seconds=0.1,
        max_drop="5%",
        task=octavo.TaskCheck("classification", test, 100, options={"scale": 255}),
    )
    assert tuned.result is not None
    searched = replace(tuned.result, choice=tuned)
    plain = octavo.quantize(model, data, samples=32, effort="plain", histograms=True)
    outputs = [folder / "first.onnx", folder / "second.onnx"]
    searched.save(outputs[0])
    plain.save(outputs[1])
    evaluated = [octavo.evaluate(output, test, against=model, samples=100, scale=255) for output in outputs]
    compared = octavo.compare(model, outputs[1], data, samples=8)
    timed = octavo.bench(model, outputs[1], seconds=0.1)
    made: dict[str, list[Any]] = {
        "quantize": [plain],
        "quantize with a task": [searched],
        "evaluate": evaluated[:1],
        "compare": [compared],
        "bench": [timed],
        "several": evaluated,
        "all": [plain, compared, evaluated[1], timed],
    }
    for number, sources in enumerate(made.values()):
        report(*sources, output=folder / f"{number}.html")
    return {name: folder / f"{number}.html" for number, name in enumerate(made)}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_no_text_lies_on_another(browser: Any, written: dict[str, Path], width: int, scheme: str) -> None:
    for name, path in written.items() if scheme == "light" else [("all", written["all"])]:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.wait_for_timeout(100)
        found = page.evaluate(SCRIPT)
        assert found["pairs"] == [], name
        assert found["width"] <= width, name
        assert found["count"] > 20, name
        context.close()


def test_the_check_sees_an_overlap(browser: Any, written: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(written["bench"].as_uri())
    page.wait_for_selector("html[data-ready]")
    page.evaluate("document.querySelector('h1').style.transform = 'translateY(60px)'")
    assert page.evaluate(SCRIPT)["pairs"]
    page.close()


def test_the_whole_explanation_of_a_trial_is_seen(browser: Any, written: dict[str, Path]) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(written["quantize with a task"].as_uri())
    page.wait_for_selector("html[data-ready]")
    box = page.locator("#what-was-tried .scroll").first
    assert box.evaluate("e => e.scrollWidth - e.clientWidth") <= 1
    page.close()


def test_the_first_page_of_each_verb_says_what_was_measured(browser: Any, written: dict[str, Path]) -> None:
    page = browser.new_page()
    for name, words in (
        ("quantize with a task", ["top1", "SQNR", "as fast", "the size", "Meets what was required"]),
        ("evaluate", ["top1", "100 samples"]),
        ("compare", ["dB at the worst output", "8 samples"]),
        ("bench", ["as fast", "the size"]),
        ("all", ["top1", "as fast", "the size"]),
    ):
        page.goto(written[name].as_uri())
        page.wait_for_selector("html[data-ready]")
        text = page.inner_text("header") + page.inner_text("#summary")
        assert [word for word in words if word not in text] == [], name
        assert ("not measured" in text.lower()) == (name == "bench"), name
    page.close()


def test_several_models_share_one_table(browser: Any, written: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(written["several"].as_uri())
    page.wait_for_selector("html[data-ready]")
    table = page.locator("#accuracy table").first
    assert [row.inner_text().split("\t")[0].lstrip("AB\n") for row in table.locator("tbody tr").all()] == [
        "reference",
        "first.onnx",
        "second.onnx",
    ]
    assert "difference of top1" in table.locator("thead").inner_text()
    page.close()
