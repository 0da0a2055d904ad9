"""The flags of data, and the data that they name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from octavo.cli.data import add_data, data_of
from octavo.cli.main import main
from octavo.data.batches import Batched
from octavo.data.readers.image_files import Images
from octavo.data.readers.random_samples import RandomData
from octavo.data.readers.text_files import Text
from octavo.errors import RecipeError


def parsed(*words: str, required: bool = False) -> Any:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_data(parser, required=required)
    return data_of(parser.parse_args(words))


def test_each_kind_of_data() -> None:
    assert parsed() is None
    assert parsed("--data", "calib.npz") == "calib.npz"
    assert parsed("--data", "module:function") == "module:function"
    assert parsed("--data", "random") == RandomData(8)
    assert parsed("--data", "random:3", "--samples", "2") == RandomData(3)
    assert isinstance(parsed("--data", "calib.npz", "--batch", "4"), Batched)


def test_images_and_texts(tmp_path: Path) -> None:
    words = ("--data", str(tmp_path), "--preprocess", "imagenet", "--size", "64x48", "--batch", "2")
    assert parsed(*words) == Images(tmp_path, "imagenet", (64, 48), 2)
    assert parsed("--data", str(tmp_path), "--size", "64").size == (64, 64)
    words = ("--data", "a.csv", "--tokenizer", "t.json", "--max-length", "9", "--column", "review")
    assert parsed(*words) == Text(Path("a.csv"), Path("t.json"), 9, None, "review")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--samples", "3"], "--samples is about data"),
        (["--preprocess", "imagenet", "--max-length", "3"], "--preprocess, --max-length is about data"),
        (["--data", "random:none"], "needs a number"),
        (["--data", "random:0"], "needs a number"),
        (["--data", "random:4", "--size", "8"], "--size has no meaning for random data"),
        (["--data", "a.txt"], "needs a tokenizer"),
        (["--data", "a.txt", "--tokenizer", "t.json", "--size", "8"], "--size has no meaning for text"),
        (["--data", "a.npz", "--column", "text"], "--column has no meaning"),
    ],
)
def test_flags_that_make_no_sense_together(words: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parsed(*words)


@pytest.mark.parametrize(
    "words", [["--samples", "0"], ["--samples", "x"], ["--size", "0x4"], ["--size", "4x"]]
)
def test_numbers_that_are_none(words: list[str]) -> None:
    with pytest.raises(argparse.ArgumentError):
        parsed("--data", "a", *words)


def test_a_folder_of_images_quantizes_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("images").mkdir()
    with np.load("calib.npz") as archive:
        for index, image in enumerate(archive["image"]):
            Image.fromarray(np.rint(image[0] * 255).astype(np.uint8)).save(f"images/{index}.png")
    words = ["quantize", "model.onnx", "-o", "out.onnx", "--data", "images", "--plain"]
    assert main([*words, "--preprocess", "unit", "--batch", "4"]) == 0
    assert Path("out.onnx").exists()
    capsys.readouterr()
    assert main(words) == 1
    assert "preprocessing" in capsys.readouterr().err


def test_random_data_is_said_to_be_random(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "model.onnx", "-o", "out.onnx", "--data", "random:4"]) == 0
    assert "calibrated with random data" in capsys.readouterr().out


def test_help_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quantize", "--help"])
    assert "yolo-letterbox" in "".join(capsys.readouterr().out.split())
