"""The page in a real browser: it opens without an error, its parts work, and hostile names do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reporting.html import hostile

from browser import chromium

pytestmark = pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))

Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Open]:
    """Open a page; at the end it must have said nothing to the console and requested no other file."""
    contexts, complaints = [], []

    def opened(name: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        address = pages[name].as_uri()
        page.on("request", lambda request: request.url == address or complaints.append(request.url))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.locator(selector).all_inner_texts()
    return found


def test_the_page_opens_with_all_its_sections(visit: Open) -> None:
    page = visit("one")
    titles = [
        "Summary",
        "Accuracy",
        "Speed",
        "Error by layer",
        "Tensors and plan",
        "Kept in float",
        "Graph",
        "Reproduce",
    ]
    assert texts(page, "main section > h2") == titles
    assert texts(page, "nav a") == titles
    assert "Accuracy kept" in page.inner_text("header")


def test_hostile_names_do_nothing(visit: Open) -> None:
    page = visit("one")
    for choice in ("#tensors-and-plan tbody button", "details > summary", "#graph tbody button"):
        for element in page.locator(choice).all()[:5]:
            element.click()
    page.hover("#error-by-layer .chart canvas")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.images.length + document.querySelectorAll('main script').length") == 0
    assert page.evaluate("[...document.querySelectorAll('[href],[src]')].every(e => e.hash)")
    assert page.evaluate("Object.keys(Object.prototype).length") == 0
    names = " ".join(texts(page, "#tensors-and-plan tbody th"))
    assert hostile.MARKUP in names and hostile.SCRIPT in names
    assert "\u202e" not in page.inner_text("body")


def test_even_markup_that_got_in_could_not_run(browser: Any, pages: dict[str, Path]) -> None:
    page = browser.new_page()
    page.goto(pages["one"].as_uri())
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked=1\">')")
    page.evaluate(
        "const s = document.createElement('script'); s.text = 'window.hacked=2'; document.body.append(s)"
    )
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    page.close()


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1.0, "ms": 1e-3, "µs": 1e-6}[unit]


def test_columns_sort_both_ways_and_say_so(visit: Open) -> None:
    page = visit("one")
    head = page.locator("#graph thead th", has_text="time")
    column = "#graph tbody td:last-child"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    rising = [seconds(text) for text in texts(page, column) if text != "–"]
    assert rising == sorted(rising) and len(rising) > 5
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert [seconds(text) for text in texts(page, column) if text != "–"] == rising[::-1]
    assert page.locator("#graph thead th[aria-sort=none]").count() == 6


def test_search_and_filter_narrow_the_plan(visit: Open) -> None:
    page = visit("large")
    assert page.locator("#tensors-and-plan tbody tr").count() == 100
    page.get_by_role("button", name="Show all 800").click()
    assert page.locator("#tensors-and-plan tbody tr").count() == 800
    page.get_by_label("Search the plan").fill("projection_77 weight")
    assert "of 800 rows" in page.inner_text("#tensors-and-plan .count")
    assert all("projection_77" in t for t in texts(page, "#tensors-and-plan tbody th"))
    page.get_by_label("Search the plan").fill("projection_77/")
    page.get_by_label("Kind").select_option("activation")
    assert page.locator("#tensors-and-plan tbody tr").count() == 1
    page.get_by_label("Search the plan").fill("no such tensor")
    assert page.inner_text("#tensors-and-plan .count") == "0 of 800 rows"


def test_a_tensor_is_selected_from_the_table(visit: Open) -> None:
    page = visit("one")
    button = page.locator("#tensors-and-plan tbody button", has_text="w1 ").first
    button.focus()
    button.press("Enter")
    assert page.inner_text("#tensor h3").startswith("w1 ")
    assert "weight" in page.inner_text("#tensor .facts")
    label = page.locator("#tensor .chart").get_attribute("aria-label")
    assert re.match(r"Histogram of w1 .*chosen range", label)
    page.locator("#tensor .chart canvas").wait_for()
    assert page.locator("#tensors-and-plan tr.selected").count() == 1
    scale = page.get_by_role("button", name="Logarithmic counts")
    scale.click()
    assert scale.get_attribute("aria-pressed") == "false"
    page.locator("#tensor .chart canvas").wait_for()


def pixels(page: Any) -> Any:
    return page.evaluate("document.querySelector('.view canvas').toDataURL()")


def test_the_graph_zooms_moves_and_selects(visit: Open) -> None:
    page = visit("one")
    view = page.locator(".view")
    view.scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    seen = [pixels(page)]

    def changed() -> bool:
        page.wait_for_timeout(60)
        seen.append(pixels(page))
        return bool(seen[-1] != seen[-2])

    page.get_by_role("button", name="Show the whole graph").click()
    assert changed()
    page.get_by_role("button", name="Zoom in").click()
    assert changed()
    view.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert changed()
    assert "MatMul" in page.inner_text(".picked")
    assert "MatMul" in page.inner_text("#live")
    page.keyboard.press("-")
    assert changed()
    box = view.bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 90, steps=3)
    page.mouse.up()
    assert changed()
    page.mouse.wheel(0, -300)
    assert changed()
    for colour in ("time", "state", "total"):
        page.get_by_label("Colour by").select_option(colour)
        assert changed()
        assert page.locator(".legend li").count() >= 5


def test_selecting_in_the_list_shows_the_operator_in_the_graph(visit: Open) -> None:
    page = visit("large")
    page.get_by_label("Search operators").fill("projection_300")
    page.locator("#graph tbody button").first.click()
    assert "projection_300" in page.inner_text(".picked")
    page.locator(".view").focus()
    page.keyboard.press("ArrowDown")
    assert "projection_301" in page.inner_text(".picked")


def test_two_results_stand_side_by_side(visit: Open) -> None:
    page = visit("two")
    assert page.locator(".verdict").count() == 2
    assert page.locator("#summary .letter").all_inner_texts() == ["A", "B"]
    heads = texts(page, "#tensors-and-plan thead th")
    assert [head for head in heads if "type" in head] == ["A: type", "B: type"]
    page.locator("#graph select").first.select_option("1")
    assert "60 rows" in page.inner_text("#graph .count")


def test_structure_for_those_who_do_not_see_it(visit: Open) -> None:
    page = visit("one")
    for landmark in ("header", "nav[aria-label]", "main", "footer"):
        assert page.locator(landmark).count() == 1
    assert page.locator("section:not([aria-labelledby])").count() == 0
    assert page.locator("h1").count() == 1
    assert page.locator(".chart:not([role=img][aria-label])").count() == 0
    assert (
        page.locator("table:not(:has(caption)), thead th:not([scope=col]), tbody th:not([scope=row])").count()
        == 0
    )
    assert page.evaluate("[...document.querySelectorAll('input,select')].every(e => e.labels.length)")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_its_window_in_light_and_dark(visit: Open, scheme: str, width: int) -> None:
    page = visit("two", color_scheme=scheme, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(int(part) for part in re.findall(r"\d+", back)[:3]) / 3
    assert shade > 200 if scheme == "light" else shade < 60


def test_it_prints_in_light_colours_with_every_chart(visit: Open) -> None:
    page = visit("one", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    page.wait_for_timeout(100)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".chart").count() == page.locator(".chart canvas").count()
    page.set_viewport_size({"width": 794, "height": 1123})
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    assert not page.locator("nav").is_visible()
    assert page.pdf()[:4] == b"%PDF"
