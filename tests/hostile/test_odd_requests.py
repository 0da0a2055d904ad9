"""Requests and folders that nobody means: each ends in a sentence, or does no harm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from hostile.models import feeds, layer
from octavo.cli.main import main
from octavo.errors import RecipeError
from octavo.isolation.limits import Limits


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(layer(), "m.onnx")
    Path("data").mkdir()
    for path in ("c.npz", "data/a.npz"):
        np.savez(path, x=np.concatenate([one["x"] for one in feeds(4)]))
    return tmp_path


def test_a_folder_of_data_may_hold_links_to_nowhere_itself_and_pipes(folder: Path) -> None:
    Path("data/nowhere.npz").symlink_to("missing")
    Path("data/itself").symlink_to(".")
    os.mkfifo("data/pipe.npz")
    assert octavo.calibrate("m.onnx", octavo.plan("m.onnx"), "data", threads=1, output="a.stats").samples == 8


@pytest.mark.parametrize("limits", ["memory=99999999999TiB", "file-size=5000000TiB", "memory", "seconds="])
def test_a_limit_beyond_any_machine_and_one_without_a_value_are_refused(limits: str) -> None:
    with pytest.raises(RecipeError, match="write for example"):
        Limits.parse(limits)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: W8A8\nbase: W4\n", "'base' is given twice, again in line 2"),
        (
            "base: W8A8\nactivations:\n  min_range: 1\n  min_range: 2\n",
            "'min_range' is given twice, again in line 4",
        ),
    ],
)
def test_a_setting_of_a_recipe_is_given_once(text: str, said: str, folder: Path) -> None:
    Path("r.yaml").write_text(text)
    with pytest.raises(RecipeError, match=said):
        octavo.Recipe.load("r.yaml")


def test_a_setting_may_replace_a_merged_one(folder: Path) -> None:
    Path("r.yaml").write_text("base: W8A8\nactivations:\n  <<: {min_range: 0.1}\n  min_range: 0.2\n")
    assert octavo.Recipe.load("r.yaml").activations.min_range == 0.2  # type: ignore[union-attr]


def test_more_random_samples_than_anybody_means_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "m.onnx", "--data", "random:99999999999999999999", "-o", "a.stats"]) == 1
    assert "give fewer" in capsys.readouterr().err


def test_names_of_files_bring_no_escape_sequences_into_a_card_or_a_page(folder: Path) -> None:
    name = "m\n\x1b]0;t\x07```.onnx"
    Path("m.onnx").rename(name)
    words = ["quantize", name, "-o", "q\x1b[2J.onnx", "--data", "c.npz", "--plain", "--threads", "1"]
    assert main([*words, "--card", "card.md", "--report", "page.html"]) == 0
    for page in ("card.md", "page.html"):
        text = Path(page).read_text()
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_second_run_writes_its_model_again_into_the_folder_of_its_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder holds data, and models that no reader takes; whatever else leads to them is found."""
    words = ["quantize", "m.onnx", "-o", "data/q.onnx", "--data", "data", "--plain", "--threads", "1"]
    assert main(words) == main(words) == 0
    capsys.readouterr()
    for link in (Path.symlink_to, Path.hardlink_to):
        link(Path("data/linked.npz"), Path("data/q.onnx").absolute())
        assert main(words) == 2
        assert "never overwritten" in capsys.readouterr().err
        Path("data/linked.npz").unlink()


def test_what_was_written_is_told_whatever_the_clock_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("q.onnx", "q.onnx.data"):
        Path(name).write_text("old")
        os.utime(name, (4e9, 4e9))  # by a clock that was set back since
    monkeypatch.setattr(time, "time", lambda: 8e9)
    assert main(["quantize", "m.onnx", "-o", "q.onnx", "--data", "c.npz", "--plain", "--threads", "1"]) == 0
    assert "written: q.onnx\n" in capsys.readouterr().out
