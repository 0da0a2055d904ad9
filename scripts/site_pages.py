"""Hooks of the documentation site: pages that lie elsewhere in the repository, and links that leave the site.

README, CONTRIBUTING and CHANGELOG become pages; the Python reference is written from
``octavo.__all__``. Links to other files of the repository become their names.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that do not lie in docs/."""
    for source, name in PAGES.items():
        files.append(File.generated(config, name, content=_moved((ROOT / source).read_text("utf-8"), "")))
    files.append(File.generated(config, "reference.md", content=_reference()))
    for file in files.documentation_pages():
        if file.src_uri.startswith("decisions/") and file.src_uri != "decisions/index.md":
            file.inclusion = file.inclusion.NOT_IN_NAV
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave docs/."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri in PAGES.values():
        return markdown
    return _moved(markdown, posixpath.join("docs", folder))


def _moved(text: str, folder: str) -> str:
    """Return a page with links as the site has them; ``folder`` is where the page lies in the repository."""

    def moved(match: re.Match[str]) -> str:
        bang, words, link, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in link:
            return match[0]
        place = posixpath.normpath(posixpath.join(folder, link))
        if place in PAGES:
            place = f"docs/{PAGES[place]}"
        if not place.startswith("docs/"):
            return words  # a file that is not on the site
        place = posixpath.relpath(place, folder or "docs")
        return f"{bang}[{words}]({place}{anchor})"

    return _LINK.sub(moved, text)


def _reference() -> str:
    """Return the page that documents every public name."""
    import octavo

    parts = ["# Python reference", "", "[Public names](api.md) says which of these are stable.", ""]
    for name in octavo.__all__:
        value = getattr(octavo, name)
        if callable(value) and getattr(value, "__module__", "").startswith("octavo"):
            parts += [f"::: {value.__module__}.{value.__name__}", ""]
    return "\n".join(parts)
