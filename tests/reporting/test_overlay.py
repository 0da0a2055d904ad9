"""Node data for Model Explorer: names of nodes with a value each, one file for each kind that is known."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from builders import model, node, tensor
from quantizing import feeds_for, weights

import octavo
from octavo.cli.main import main

KINDS = ["decision", "local-error", "model-error", "time"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A float model, its quantized twin, and the JSON of every verb."""
    path = tmp_path_factory.mktemp("overlay")
    net = model(
        [
            node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"], name="relu"),
            node("Conv", ["b", "v"], ["c"], name="second"),
            node("Erf", ["c"], ["y"], name="erf"),
        ],
        [tensor("x", [1, 16, 16, 16])],
        [tensor("y", None)],
        {"w": weights(32, 16, 3, 3), "v": weights(16, 32, 1, 1, seed=1)},
    )
    onnx.save(net, path / "m.onnx")
    data = feeds_for(net, 8)
    result = octavo.quantize(net, data, output=path / "q.onnx", effort="plain")
    (path / "q.json").write_text(json.dumps(result.to_dict() | {"kind": "quantization"}, default=str))
    found = octavo.compare(path / "m.onnx", path / "q.onnx", data)
    (path / "c.json").write_text(json.dumps(found.to_dict(), default=str))
    timed = octavo.bench(path / "m.onnx", path / "q.onnx", seconds=0.05)
    (path / "b.json").write_text(json.dumps(timed.to_dict(), default=str))
    return path


def test_each_kind_that_is_known_is_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = [str(folder / name) for name in ("q.onnx", "c.json", "b.json")]
    assert main(["report", *sources, "--overlay", str(folder / "out"), "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert [Path(name).stem for name in written["overlay"]] == KINDS and written["written"] is None
    names = {one.name for one in onnx.load(folder / "q.onnx").graph.node}
    for kind in KINDS:
        data = json.loads((folder / "out" / f"{kind}.json").read_text())
        assert data["results"].keys() <= names | {"relu"}
        assert "conv" in data["results"]
        assert all(set(row) <= {"value", "bgColor"} for row in data["results"].values())
        if kind != "decision":
            assert all(isinstance(row["value"], int | float) for row in data["results"].values())
            assert [stop["stop"] for stop in data["gradient"]] == [0.0, 0.5, 1.0]


def test_nodes_that_only_the_float_model_has_are_shown_as_fused(folder: Path) -> None:
    assert main(["report", str(folder / "q.json"), "--overlay", str(folder / "plan")]) == 0
    found = json.loads((folder / "plan" / "decision.json").read_text())["results"]
    assert {name: row["value"] for name, row in found.items()} == {
        "conv": "quantized",
        "relu": "fused",
        "second": "quantized",
        "erf": "kept in float",
    }


def test_a_comparison_alone_gives_errors(folder: Path) -> None:
    assert main(["report", str(folder / "c.json"), "--overlay", str(folder / "alone")]) == 0
    assert sorted(file.stem for file in (folder / "alone").iterdir()) == ["local-error", "model-error"]


def test_a_report_has_to_go_somewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(folder / "c.json")]) == 2
    assert "-o report.html" in capsys.readouterr().err


def test_nothing_known_of_operators_is_an_error_and_writes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = octavo.evaluate(folder / "q.onnx", feeds_for(onnx.load(folder / "m.onnx"), 2), "agreement",
                            against=folder / "m.onnx").to_dict()  # fmt: skip
    (tmp_path / "e.json").write_text(json.dumps(plain, default=str))
    assert main(["report", str(tmp_path / "e.json"), "--overlay", str(tmp_path / "out")]) == 2
    assert "Nothing is known of single operators" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
