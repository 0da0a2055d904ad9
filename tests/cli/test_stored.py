"""``--stored``: weights in a quarter of the file, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main, parse
from octavo.cli.selection import recipe_of
from octavo.core.qtypes import INT8
from octavo.core.recipe import STORED, W8, W8A8, Recipe


def recipe(*flags: str, static: bool = True) -> Recipe | None:
    return recipe_of(parse(["plan", "m.onnx", *flags]), static=static)


def test_the_rest_is_stored_beside_whatever_is_quantized() -> None:
    assert recipe("--stored", "rest") == W8A8.but(stored=INT8)
    assert recipe("--stored", "rest", "--dynamic", static=False) == W8.but(stored=INT8)
    assert recipe("--stored", "rest", static=False) == W8.but(stored=INT8)
    assert recipe("--recipe", "W8A8", "--stored", "rest") == W8A8.but(stored=INT8)


def test_all_quantizes_nothing() -> None:
    assert recipe("--stored", "all") == STORED


def test_all_weights_are_stored_and_nothing_is_quantized(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "model.onnx", "-o", "small.onnx", "--stored", "all", "--manifest"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nothing quantized\n")
    assert "weights are stored as int8 and run as float" in printed
    assert (folder / "small.onnx").stat().st_size < 0.4 * (folder / "model.onnx").stat().st_size
    assert json.loads((folder / "small.onnx.manifest.json").read_text())["stored"] > 0
    assert main(["inspect", "small.onnx"]) == 0
    assert "int8/channel, run as float" in capsys.readouterr().out
    assert main(["lint", "small.onnx"]) == 0


@pytest.mark.usefixtures("folder")
def test_a_plan_lists_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.onnx", "--dynamic", "--stored", "rest", "--tensors"]) == 0
    printed = capsys.readouterr().out
    assert "stored as int8 and run as float" in printed
    assert "int8/channel from its values, runs as float" in printed


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("verb", "flags", "words"),
    [
        (
            "quantize",
            ["--stored", "all", "--data", "calib.npz"],
            "--stored all quantizes nothing and needs no",
        ),
        ("quantize", ["--stored", "all", "--dynamic"], "--stored all quantizes nothing, and --dynamic"),
        ("quantize", ["--stored", "all", "--op-types", "Conv"], "--op-types would say how"),
        ("quantize", ["--stored", "rest", "--plan", "p.json"], "--plan has decided what --stored"),
        ("calibrate", ["--stored", "all", "--data", "calib.npz"], "nothing to calibrate"),
    ],
)
def test_what_contradicts_is_refused(
    verb: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "model.onnx", "-o", "out.onnx", *flags]) == 2
    assert words in capsys.readouterr().err
