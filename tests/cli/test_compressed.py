"""``--compressed``: weights in a quarter of the file, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main, parse
from octavo.cli.selection import changes_of
from octavo.core.qtypes import INT8
from octavo.core.recipe import COMPRESSED, W8, W8A8, Recipe
from octavo.pipeline.request import RecipeRequest
from octavo.targets.defaults import STATIC


def recipe(*flags: str, static: bool = True) -> Recipe:
    options = parse(["plan", "m.onnx", *flags])
    return RecipeRequest.of(options.recipe, options.target, changes_of(options)).resolve(static=static)[0]


def test_the_rest_is_stored_beside_whatever_is_quantized() -> None:
    assert recipe("--compressed", "rest") == STATIC.but(target="ort-cpu", compressed=INT8)
    assert recipe("--compressed", "rest", "--dynamic", static=False) == W8.but(compressed=INT8)
    assert recipe("--compressed", "rest", static=False) == W8.but(compressed=INT8)
    assert recipe("--recipe", "W8A8", "--compressed", "rest") == W8A8.but(compressed=INT8)


def test_all_quantizes_nothing() -> None:
    assert recipe("--compressed", "all") == recipe("--stored", "all") == COMPRESSED


def test_all_weights_are_stored_and_nothing_is_quantized(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", "model.onnx", "-o", "small.onnx", "--compressed", "all", "--manifest"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nothing quantized\n")
    assert "weights compressed to int8" in printed
    assert (folder / "small.onnx").stat().st_size < 0.4 * (folder / "model.onnx").stat().st_size
    assert json.loads((folder / "small.onnx.manifest.json").read_text())["stored"] > 0
    assert main(["inspect", "small.onnx"]) == 0
    assert "int8/channel, dequantized at load" in capsys.readouterr().out
    assert main(["lint", "small.onnx"]) == 0


@pytest.mark.usefixtures("folder")
def test_a_plan_lists_what_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.onnx", "--dynamic", "--compressed", "rest", "--tensors"]) == 0
    printed = capsys.readouterr().out
    assert "compressed to int8" in printed
    assert "int8/channel from its values, dequantized at load" in printed


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("verb", "flags", "words"),
    [
        (
            "quantize",
            ["--compressed", "all", "--data", "calib.npz"],
            "--compressed all quantizes nothing and needs no",
        ),
        ("quantize", ["--compressed", "all", "--dynamic"], "quantizes nothing, so activations"),
        ("quantize", ["--compressed", "all", "--op-types", "Conv"], "--op-types"),
        ("quantize", ["--compressed", "rest", "--plan", "p.json"], "--plan has decided --compressed"),
        ("calibrate", ["--compressed", "all", "--data", "calib.npz"], "nothing to calibrate"),
    ],
)
def test_what_contradicts_is_refused(
    verb: str, flags: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "model.onnx", "-o", "out.onnx", *flags]) == 2
    assert words in capsys.readouterr().err
