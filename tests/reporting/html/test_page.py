"""The page as a file: complete in itself, small, and nothing but data where a model's names are."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

import octavo
from octavo.reporting.html import page, report
from octavo.reporting.html.page_data import page_data
from octavo.reporting.html.report_parts import sides
from reporting.html import hostile


@pytest.fixture(scope="module")
def everything() -> str:
    return report(*hostile.everything())


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data_of(text: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="octavo-data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_nothing_is_fetched(everything: str) -> None:
    for tag, attributes in Elements(everything).found:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert not str(attributes.get("href", "#")).startswith(("http", "//", "javascript"))


def test_only_the_pages_own_scripts_may_run(everything: str) -> None:
    found = Elements(everything).found
    (policy,) = [str(a["content"]) for t, a in found if t == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    scripts = re.findall(r"<script>(.*?)</script>", everything, re.DOTALL)
    assert len(scripts) == 2
    assert all(page._digest(script) in policy for script in scripts)
    assert page._digest(re.findall(r"<style>(.*?)</style>", everything, re.DOTALL)[0]) in policy


def test_names_come_through_as_data(everything: str) -> None:
    data = json.dumps(data_of(everything), ensure_ascii=False)
    for name in (hostile.MARKUP, hostile.SCRIPT, hostile.LINK, hostile.TEMPLATE, hostile.PROTOTYPE):
        assert json.dumps(name)[1:-1] in data
        if "<" in name:
            assert name not in everything


def test_a_hostile_title_stays_text() -> None:
    title = f"</title>{hostile.SCRIPT}{{{{script}}}}"
    text = report(hostile.evaluation(), title=title)
    assert hostile.SCRIPT not in text
    assert [tag for tag, _ in Elements(text).found].count("script") == 3
    assert "&lt;/title&gt;" in text


@pytest.mark.parametrize(
    "value", ["</script>", "<!--", "&lt;", "\u2028\u2029", "\ud800", float("nan"), 1e400]
)
def test_embedded_data_can_not_end_its_element(value: object) -> None:
    text = page.embedded({"a": value})
    assert not set(text) & set("<>&\u2028\u2029")
    json.loads(text)
    text.encode("utf-8")


def test_the_page_of_a_thousand_operators_is_below_five_megabytes() -> None:
    text = report(hostile.large(1000))
    assert len(text.encode()) < 5_000_000


def test_the_same_results_give_the_same_bytes() -> None:
    assert report(hostile.large(20)) == report(hostile.large(20))


def test_the_library_comes_with_its_licence() -> None:
    folder = resources.files("octavo.reporting.html") / "assets"
    assert "Apache License" in (folder / "echarts.LICENSE").read_text()
    assert "Apache ECharts" in (folder / "echarts.NOTICE").read_text()
    assert "Mike Bostock" in (folder / "echarts.LICENSE-d3").read_text()
    assert "Baidu" in (folder / "echarts.LICENSE-zrender").read_text()
    assert f'version="{page.ECHARTS}"' in (folder / "echarts.common.min.js").read_text()


def test_long_names_are_cut_in_the_page() -> None:
    data = json.dumps(page_data(sides([hostile.evaluation()])))
    assert hostile.LONG not in data
    assert "…" in json.loads(data)["sides"][0]["evaluation"]["per_class"]["model"][-1]["name"]


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    text = octavo.report(hostile.evaluation(), output=target)
    assert target.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [target]


def test_a_notebook_shows_a_result_without_scripts() -> None:
    text = hostile.quantized()._repr_html_()
    assert "<script" not in text and "<img" not in text
    assert "kept in float because" in text
