"""The table of CONTRIBUTING names everything that can be added, and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import octavo

ROOT = Path(__file__).parents[2]


def test_every_kind_of_addition_has_a_row_a_section_and_a_test() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| \[an? ([\w ]+)\]\(#([\w-]+)\) \| (\S+) \| `([\w/.]+)`", text, re.M)
    sections = {name.replace(" ", "-") for name in re.findall(r"^## (Add an? [\w ]+)$", text, re.M)}
    assert {section for _, section, _, _ in rows} == {name.lower() for name in sections}
    assert len(rows) == 9
    for name, _, folder, registry in rows:
        assert (Path(__file__).parent / f"test_{name.replace(' ', '_')}.py").is_file(), name
        source = Path(octavo.__file__).parent
        assert (source / registry).is_file(), registry
        assert folder == "–" or (source / folder.strip("`")).is_dir(), folder
