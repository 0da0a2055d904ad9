"""Documentation is run: Python blocks are executed, command lines parsed, links followed."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from octavo.cli.main import VERBS, parse
from octavo.core.plan import Plan
from octavo.core.recipe import Recipe

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "fashion_mnist"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
EXECUTED = [page for page in PAGES if page.name != "CONTRIBUTING.md"]  # that one: tests/extending
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """A fenced block, and where it begins."""

    page: Path
    line: int
    language: str
    text: str


def blocks(page: Path, language: str) -> list[Block]:
    """The blocks of one language on a page."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text[: match.start()].count("\n") + 2, match[1], match[2])
        for match in FENCE.finditer(text)
        if match[1] == language
    ]


def commands() -> list[tuple[str, str]]:
    """Every ``octavo …`` line of the console blocks."""
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            for line in block.text.splitlines():
                if line.startswith("$ octavo"):
                    found.append((page.name, line.removeprefix("$ ")))
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the model and the data that the pages speak of."""
    shutil.copy(EXAMPLE / "model.onnx", tmp_path / "model.onnx")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        images = archive["image"][:32]
    for name in ("calib.npz", "calibration.npz"):  # on the pages at large, and in the example's folder
        np.savez(tmp_path / name, image=images)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, folder: Path) -> None:
    """The blocks of a page run in order and share their names."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        # Line numbers of a failure are those of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        exec(code, names)


@pytest.mark.parametrize(("page", "command"), commands())
def test_command_lines_parse(page: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command, comments=True)[1:]
    if "--help" in words:
        with pytest.raises(SystemExit) as stop:
            parse(words)
        assert stop.value.code == 0
    else:
        assert parse(words).verb in {verb.name for verb in VERBS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_in_yaml_are_recipes(page: Path) -> None:
    for block in blocks(page, "yaml"):
        Recipe.from_dict(yaml.safe_load(block.text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_plans_in_json_are_plans(page: Path) -> None:
    for block in blocks(page, "json"):
        if "octavo_plan" in block.text:
            Plan.from_dict(json.loads(block.text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


ANCHOR = re.compile(r"\[[^\]]*\]\(([^)#]*)#([^)]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Markdown renderers make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r" +", "-", re.sub(r"[^\w\- ]", "", title.lower()).strip()) for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_anchors_exist(page: Path) -> None:
    for link, anchor in ANCHOR.findall(page.read_text(encoding="utf-8")):
        if not link.startswith("http"):
            assert anchor in anchors(page.parent / link if link else page), f"{link}#{anchor}"


def test_the_command_line_page_names_every_verb_and_flag() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for verb in VERBS:
        assert f"`{verb.name} " in text
        parser = argparse.ArgumentParser()
        verb.arguments(parser)
        flags = {
            flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")
        }
        missing = {flag for flag in flags - {"--help", "--output"} if not flag.startswith("--no-symbolic")}
        assert not {flag for flag in missing if flag not in text}
