"""The navigation of the site names every page, so that a strict build passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {"index.md", "contributing.md", "changelog.md", "reference.md"}  # by scripts/site_pages.py


def pages(nav: Any) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    items = nav.values() if isinstance(nav, dict) else nav
    return set().union(*map(pages, items))


def test_every_page_is_in_the_navigation() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    there = {path.name for path in (ROOT / "docs").glob("*.md")} | {"decisions/index.md"}
    assert pages(config["nav"]) == there | GENERATED
