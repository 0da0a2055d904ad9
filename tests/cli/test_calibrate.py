"""``octavo calibrate``, ``octavo stats`` and ``octavo quantize --stats``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

import octavo
from octavo.cli.main import main

CALIBRATE = ["calibrate", "model.onnx", "--data", "calib.npz"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def complaint(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_shards_merge_into_what_one_run_gives(capsys: pytest.CaptureFixture[str]) -> None:
    whole = answer(capsys, *CALIBRATE, "-o", "whole.stats", "--engine", "serial")
    assert whole["written"] == ["whole.stats"]
    assert whole["samples"] == 16
    for number in ("1", "2", "3"):
        answer(capsys, *CALIBRATE, "-o", f"part{number}.stats", "--shard", f"{number}/3")
    parts = ["part2.stats", "part1.stats", "part3.stats"]
    assert main(["stats", "merge", *parts, "-o", "merged.stats"]) == 0
    assert "on 16 samples" in capsys.readouterr().out
    assert Path("merged.stats").read_bytes() == Path("whole.stats").read_bytes()
    assert main(["stats", "merge", *parts[:2], "-o", "part1.stats"]) == 2  # an input is never replaced
    assert octavo.load_stats("part1.stats").samples < 10


@pytest.mark.usefixtures("folder")
def test_statistics_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    main([*CALIBRATE, "-o", "m.stats", "--shard", "2/2"])
    capsys.readouterr()
    assert main(["stats", "show", "m.stats"]) == 0
    text = capsys.readouterr().out
    assert "on 8 samples" in text
    assert "8 to 15" in text
    assert "pool.output" not in text
    assert main(["stats", "show", "m.stats", "--tensors"]) == 0
    assert "pool.output" in capsys.readouterr().out
    data = answer(capsys, "stats", "show", "m.stats")
    assert data["origin"]["spans"] == [[8, 16]]
    assert data["tensors"]["pool.output"]["high"] <= 6.0


@pytest.mark.usefixtures("folder")
def test_quantize_takes_statistics_instead_of_data(capsys: pytest.CaptureFixture[str]) -> None:
    main([*CALIBRATE, "-o", "m.stats"])
    for method in ("minmax", "entropy"):
        main(["quantize", "model.onnx", "-o", "a.onnx", "--stats", "m.stats", "--method", method])
        same = ["--method", method, "--recipe", "W8A8"]
        main(["quantize", "model.onnx", "-o", "b.onnx", "--data", "calib.npz", *same])
        assert onnx.load("a.onnx").graph == onnx.load("b.onnx").graph
    said = complaint(capsys, 2, "quantize", "model.onnx", "-o", "c.onnx", "--stats", "m.stats", "--dynamic")
    assert "--dynamic needs no --stats" in said


@pytest.mark.usefixtures("folder")
def test_wrong_requests_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a shard" in complaint(capsys, 2, *CALIBRATE, "-o", "m.stats", "--shard", "4/3")
    assert "--dynamic" in complaint(capsys, 2, *CALIBRATE, "-o", "m.stats", "--dynamic")
    assert "needs -o" in complaint(capsys, 2, "stats", "merge", "a", "b")
    assert "takes one file" in complaint(capsys, 2, "stats", "show", "a", "b")
    assert "not statistics of octavo" in complaint(capsys, 1, "stats", "show", "model.onnx")
    main([*CALIBRATE, "-o", "m.stats", "--samples", "2"])
    octavo.prepare("model.onnx").save("other.onnx")
    said = complaint(capsys, 1, "quantize", "other.onnx", "-o", "c.onnx", "--stats", "m.stats")
    assert "another model" in said
    main([*CALIBRATE, "-o", "part.stats", "--shard", "1/2"])
    said = complaint(capsys, 1, "stats", "merge", "m.stats", "part.stats", "-o", "c.stats")
    assert "part.stats" in said
    assert "counted twice" in said
    assert not Path("c.stats").exists()


@pytest.mark.usefixtures("folder")
def test_a_run_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    main([*CALIBRATE, "-o", "m.stats.checkpoint", "--shard", "1/2"])
    capsys.readouterr()
    assert main([*CALIBRATE, "-o", "m.stats"]) == 0
    assert "going on from m.stats.checkpoint" in capsys.readouterr().err
    assert not Path("m.stats.checkpoint").exists()
    assert octavo.load_stats("m.stats").samples == 16
