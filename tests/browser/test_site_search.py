"""The documentation site opened from disk: its search needs a worker, which browsers refuse to such pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from browser import chromium

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "javascripts" / "iframe-worker.js"
PAGE = """
<body><script src="iframe-worker.js"></script><script>
  const worker = new Worker("workers/double.js");
  worker.onmessage = ({ data }) => { document.title = data; };
  worker.postMessage(20);
</script></body>
"""
WORKER = """
addEventListener("message", async ({ data }) => {
  await importScripts("../two.js");
  postMessage(data * two + 2);
});
"""


@pytest.mark.skipif(chromium.missing() is not None, reason=str(chromium.missing()))
def test_a_worker_answers_on_a_page_from_disk(browser: Any, tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "double.js").write_text(WORKER)
    (tmp_path / "two.js").write_text("var two = 2;")
    (tmp_path / "index.html").write_text(PAGE)
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    page.wait_for_function("document.title === '42'")
    page.close()


def test_the_site_loads_no_script_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    (script,) = config["extra"]["polyfills"]
    assert ROOT / "docs" / script == SCRIPT
