"""``--report out.html`` and ``octavo report`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_net
from quantizing import feeds_for

from octavo.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    proto = conv_net()
    onnx.save(proto, str(tmp_path / "model.onnx"))
    np.savez(tmp_path / "calib.npz", x=np.concatenate([feed["x"] for feed in feeds_for(proto)]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def sections(path: Path) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    start = text.index('id="octavo-data">') + len('id="octavo-data">')
    side: dict[str, object] = json.loads(text[start : text.index("</script>", start)])["sides"][0]
    return side


def test_each_verb_writes_a_page_and_report_joins_their_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize = ["quantize", "model.onnx", "-o", "q.onnx", "--data", "calib.npz", "--plain"]
    assert main([*quantize, "--report", "q.html"]) == 0
    page = sections(folder / "q.html")
    assert page["tensors"] and page["graph"] and page["settings"]
    assert any(row["histogram"] for row in page["tensors"] if row["kind"] == "activation")
    assert main([*quantize, "--report", "q.json"]) == 0
    compare = ["compare", "model.onnx", "q.onnx", "--data", "calib.npz"]
    assert main([*compare, "--report", "c.html"]) == 0
    assert sections(folder / "c.html")["depth"]
    assert main([*compare, "--report", "c.json"]) == 0
    evaluate = ["evaluate", "model.onnx", "q.onnx", "--task", "agreement", "--data", "calib.npz"]
    assert main([*evaluate, "--report", "e.html"]) == 0
    assert sections(folder / "e.html")["evaluation"]
    bench = ["bench", "model.onnx", "q.onnx", "--seconds", "0.05", "--no-memory", "--report"]
    assert main([*bench, "b.html"]) == 0
    assert sections(folder / "b.html")["bench"]
    assert main([*bench, "b.json"]) == 0
    capsys.readouterr()
    assert main(["report", "q.json", "c.json", "b.json", "-o", "all.html", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["holds"] for one in said["results"]] == [["quantization", "comparison", "bench"]]
    page = sections(folder / "all.html")
    nodes = page["graph"]["nodes"]
    assert any("us" in node for node in nodes) and any("local" in node for node in nodes)


def test_two_results_are_laid_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = ["quantize", "model.onnx", "-o", "a.onnx", "--data", "calib.npz", "--plain"]
    assert main([*plain, "--report", "a.json"]) == 0
    assert (
        main(
            [
                "quantize",
                "model.onnx",
                "-o",
                "b.onnx",
                "--data",
                "calib.npz",
                "--per",
                "tensor",
                "--report",
                "b.json",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["report", "a.json", "b.json", "-o", "ab.html"]) == 0
    assert capsys.readouterr().out.count(".onnx:") == 2
    assert main(["report", "a.onnx", "-o", "model.html", "--title", "mine"]) == 0
    assert "<title>mine" in (folder / "model.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["missing.json", "-o", "r.html"], 1, "does not exist"),
        (["model.onnx", "-o", "r.pdf"], 2, "ends in .html"),
        (["model.onnx", "-o", "no/r.html"], 1, "no folder"),
        (["model.onnx", "calib.npz", "-o", "r.html"], 1, "is not text"),
    ],
)
def test_wrong_requests_are_sentences(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    assert main(["report", *arguments]) == code
    assert said in capsys.readouterr().err
    assert not (folder / "r.html").exists()
