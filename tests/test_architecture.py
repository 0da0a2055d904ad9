"""The page on the architecture names files and functions that exist, and no folder is missing from it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "octavo"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST_HOPS = 12


def test_the_walk_names_functions_that_exist_in_at_most_a_dozen_hops() -> None:
    walk = PAGE.split("## From `octavo quantize`", 1)[1].split("\n## ", 1)[0]
    hops = re.findall(r"^\| \d+ \| `([^`]+)` \| `([^`]+)` \|", walk, re.MULTILINE)
    assert 6 <= len(hops) <= MOST_HOPS
    for file, function in hops:
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, file


def test_every_path_on_the_page_exists() -> None:
    for path in re.findall(r"`((?:\w+/)+\w*(?:\.py)?|\w+\.py)`", PAGE):
        places = [SOURCE / parent / path for parent in ("", "pipeline", "planning", "calibration")]
        assert path.startswith("octavo/") or any(place.exists() for place in places), path


def test_every_package_is_on_the_page() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert not {name for name in packages if f"`{name}/" not in PAGE}


def test_decisions_are_numbered_and_have_three_parts() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "index.md").read_text(encoding="utf-8")
    records = sorted(path for path in folder.glob("*.md") if path.name != "index.md")
    assert [path.name[:4] for path in records] == [f"{n:04d}" for n in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
        assert f"({path.name})" in index
