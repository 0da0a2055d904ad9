"""Runs a section of CONTRIBUTING.md in a copy of the package: adds its file and its line, then uses it.

A section holds Python blocks that begin with the path of a new file, ``diff`` blocks with a registry, a line
of it and the line to add below, and Python blocks that use what was added.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Section:
    """The blocks of a section, by what they are for."""

    files: dict[str, str]  # new files: path and content
    lines: dict[str, tuple[str, str]]  # registries: path, the line that is there, the line to add below it
    uses: list[str]


def section(title: str) -> Section:
    """Return the blocks below a heading of CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = re.split(r"^## ", page.split(f"\n## {title}\n", 1)[1], flags=re.MULTILINE)[0]
    found = Section({}, {}, [])
    for language, block in _FENCE.findall(text):
        first, _, rest = block.partition("\n")
        if language == "diff":
            before, added = (line[1:] for line in rest.splitlines())
            found.lines[first.removeprefix("--- ")] = (before, added)
        elif language == "python" and first.startswith("# src/"):
            found.files[first.removeprefix("# ")] = rest
        elif language == "python":
            found.uses.append(block)
    return found


def add_and_use(title: str, folder: Path) -> str:
    """Add what a section adds, in a copy of the package, and return what the section's use of it prints."""
    wanted = section(title)
    assert len(wanted.files) <= 1, "one file of its own"
    assert len(wanted.lines) <= 1, "at most one registry line"
    assert wanted.uses
    copy = folder / "copy"
    for path in (*wanted.files, *wanted.lines):
        _overlay(copy, Path(path))
    for path, content in wanted.files.items():
        assert not (ROOT / path).exists()
        (copy / path).write_text(content.lstrip("\n"), encoding="utf-8")
    for path, (before, added) in wanted.lines.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        assert text.count(f"\n{before}\n") == 1, f"{path} has no line {before!r}"
        (copy / path).unlink()
        (copy / path).write_text(text.replace(f"{before}\n", f"{before}\n{added}\n"), encoding="utf-8")
    environment = dict(os.environ, PYTHONPATH=str(copy / "src"), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(wanted.uses)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _overlay(copy: Path, path: Path) -> None:
    """Make the folder of a path a real one in the copy; everything around it is linked."""
    here = Path("src")
    for part in path.relative_to("src").parts[:-1]:
        here /= part
        if (copy / here).is_symlink():
            (copy / here).unlink()
        (copy / here).mkdir(parents=True, exist_ok=True)
        for child in (ROOT / here).iterdir():
            if child.name != "__pycache__" and not (copy / here / child.name).exists():
                (copy / here / child.name).symlink_to(child)
