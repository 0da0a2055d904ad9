"""A real browser and the pages that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reporting.html import hostile

from browser import chromium
from octavo.reporting.html import report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium.path(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of the hostile net alone, of two results, and of a large one."""
    folder = tmp_path_factory.mktemp("pages")
    parts = hostile.everything()
    made = {"one": parts, "two": [*parts, hostile.large(60)], "large": [hostile.large(400)]}
    for name, sources in made.items():
        report(*sources, output=folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in made}
