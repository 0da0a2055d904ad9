"""The page on other runtimes: its commands run here; the model for OpenVINO runs there if installed."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from test_docs import EXAMPLE, ROOT, blocks

from octavo.cli.main import main

PAGE = ROOT / "docs" / "howto-runtimes.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model and the data that the page speaks of."""
    made = tmp_path_factory.mktemp("runtimes")
    shutil.copy(EXAMPLE / "model.onnx", made / "model.onnx")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        np.savez(made / "calib.npz", image=archive["image"][:32])
    return made


@pytest.fixture(scope="module")
def said(folder: Path) -> dict[str, str]:
    """What each command of the page prints; each ends with the exit code 0."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for block in blocks(PAGE, "console"):
            for line in block.text.splitlines():
                command = line.removeprefix("$ octavo ")
                report = folder / "said.txt"
                with report.open("w", encoding="utf-8") as stream:
                    patch.setattr("sys.stdout", stream)
                    code = main(shlex.split(command))
                assert code == 0, command
                found[command] = report.read_text(encoding="utf-8")
    return found


def test_each_runtime_gets_a_model_that_its_rules_have_nothing_against(said: dict[str, str]) -> None:
    lints = {command: text for command, text in said.items() if command.startswith("lint ")}
    assert {command.split()[-1] for command in lints} == {"tensorrt", "qnn", "openvino"}
    assert all("nothing found" in text for text in lints.values())


def test_the_page_names_targets_that_there_are(said: dict[str, str]) -> None:
    assert all(name in said["targets"] for name in ("tensorrt", "qnn", "openvino"))


def test_openvino_computes_what_onnx_runtime_does(said: dict[str, str], folder: Path) -> None:
    openvino = pytest.importorskip("openvino")
    onnxruntime = pytest.importorskip("onnxruntime")
    with np.load(EXAMPLE / "calibration.npz") as archive:
        images = archive["image"][-32:]
    float_model = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    compiled = openvino.Core().compile_model(str(folder / "model.ov.onnx"), "CPU")
    expected = np.concatenate([float_model.run(None, {"image": one[None]})[0] for one in images])
    found = np.concatenate([compiled({"image": one[None]})[0] for one in images])
    noise = np.square(found - expected).sum() / np.square(expected).sum()
    assert -10 * np.log10(noise) > 25
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.9
