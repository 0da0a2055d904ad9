"""Agreement, metrics of one's own, and engines that all say the same."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor

import octavo
from evaluation.made import class_folders, colour_classifier, constant_output, save
from octavo.cli.main import main
from octavo.errors import DataError, ModelError, RecipeError

RNG = np.random.default_rng(0)
FEEDS = [{"x": RNG.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(12)]


@pytest.fixture
def float_model(tmp_path: Path) -> Path:
    return save(conv_net(), tmp_path / "float.onnx")


@pytest.fixture
def quantized(float_model: Path, tmp_path: Path) -> Path:
    octavo.quantize(float_model, FEEDS[:4], output=tmp_path / "int8.onnx", effort="plain")
    return tmp_path / "int8.onnx"


def test_agreement_is_the_share_of_like_answers(float_model: Path, quantized: Path) -> None:
    from octavo.model.runtime.session import Session

    result = octavo.evaluate(quantized, FEEDS, "agreement", against=float_model)
    first, second = Session.open(float_model), Session.open(quantized)
    wanted = np.concatenate([first.run(feed)["y"] for feed in FEEDS]).astype(float)
    got = np.concatenate([second.run(feed)["y"] for feed in FEEDS]).astype(float)
    assert result["agreement"] == (wanted.argmax(1) == got.argmax(1)).mean()
    want_db = 10 * math.log10((wanted**2).sum() / ((wanted - got) ** 2).sum())
    assert result["sqnr_db"] == pytest.approx(want_db)
    cosine = (wanted * got).sum() / math.sqrt((wanted**2).sum() * (got**2).sum())
    assert result["cosine"] == pytest.approx(cosine)
    assert result.per_class[0].name == "y"
    assert result.against == str(float_model)


def test_a_model_agrees_with_itself(float_model: Path) -> None:
    result = octavo.evaluate(float_model, iter(FEEDS), "agreement", against=float_model, samples=5)
    assert (result["agreement"], result["sqnr_db"], result["cosine"]) == (1.0, math.inf, pytest.approx(1.0))
    assert result.samples == 5
    assert "exact" in str(result)


def test_outputs_that_are_no_scores_have_no_agreement(tmp_path: Path) -> None:
    maps = save(constant_output({"map": np.ones((1, 2, 4, 4), np.float32)}), tmp_path / "map.onnx")
    feeds = [{"image": np.zeros((1, 3, 16, 16), np.float32)}]
    result = octavo.evaluate(maps, feeds, "agreement", against=maps)
    assert [score.name for score in result.scores] == ["sqnr_db", "cosine"]


def test_agreement_needs_a_model_to_agree_with_and_like_outputs(float_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="give both"):
        octavo.evaluate(float_model, FEEDS, "agreement")
    other = model([node("Relu", ["x"], ["z"])], [tensor("x", ["N", 3, 8, 8])], [tensor("z", ["N", 3, 8, 8])])
    with pytest.raises(ModelError, match="different outputs"):
        octavo.evaluate(save(other, tmp_path / "o.onnx"), FEEDS, "agreement", against=float_model)
    with pytest.raises(DataError, match="is not an input of the model"):
        octavo.evaluate(float_model, [{"y": FEEDS[0]["x"]}], "agreement", against=float_model)


@pytest.mark.parametrize("engine", ["processes"])
def test_every_engine_gives_the_same_bits(engine: str, float_model: Path, quantized: Path) -> None:
    def figures(**options: Any) -> dict[str, Any]:
        data = octavo.evaluate(quantized, FEEDS, "agreement", against=float_model, **options).to_dict()
        return {key: value for key, value in data.items() if key != "seconds"}

    assert figures(engine=engine, workers=2) == figures()


def test_what_goes_to_workers_can_be_pickled_and_says_the_same(tmp_path: Path) -> None:
    from octavo.evaluation.evaluator import Inference
    from octavo.evaluation.task import TaskContext
    from octavo.evaluation.task_registry import task_of
    from octavo.model.files import io
    from octavo.model.runtime.samples import specs_of

    classifier = save(colour_classifier(), tmp_path / "c.onnx")
    context = TaskContext(specs_of(io.load(classifier)), classifier)
    metrics = tmp_path / "own.py"
    metrics.write_text("def first(outputs, label):\n    return outputs['scores'][0, 0]\n")
    folder = class_folders(tmp_path / "val")
    for task, data in (
        (task_of("classification", {"preprocess": "unit"}), folder),
        (task_of(closeness, {}), pairs()),
        (task_of(f"{metrics}:first", {}), pairs()),
    ):
        prepared = task.open(data, context)
        job = Inference((classifier,), prepared.processing)
        with job.open(1) as here, pickle.loads(pickle.dumps(job)).open(1) as there:
            for batch in prepared.batches:
                assert here(batch) == there(pickle.loads(pickle.dumps(batch)))


@octavo.metric(name="closeness", higher_is_better=False)
def closeness(outputs: Any, label: Any) -> float:
    return float(np.abs(outputs["scores"][0] - label).max())


def pairs() -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    images = RNG.random((6, 1, 3, 8, 8)).astype(np.float32)
    return [({"image": image}, image.mean((0, 2, 3)) + 0.25) for image in images]


def test_a_function_is_a_metric_by_itself_and_by_name(tmp_path: Path) -> None:
    path = save(colour_classifier(), tmp_path / "c.onnx")
    result = octavo.evaluate(path, pairs(), closeness)
    assert result.scores[0].value == pytest.approx(0.25, abs=1e-6)
    assert (result.task, result.scores[0].higher_is_better) == ("closeness", False)
    assert octavo.evaluate(path, pairs(), "closeness", against=path).differences[0].value == 0


def test_a_metric_that_fails_is_told(tmp_path: Path) -> None:
    path = save(colour_classifier(), tmp_path / "c.onnx")
    with pytest.raises(RecipeError, match=r"metric 'broken' failed on sample 0: KeyError.*'scores' \[1, 3\]"):
        octavo.evaluate(path, pairs(), broken)
    with pytest.raises(DataError, match="returned NaN"):
        octavo.evaluate(path, pairs(), nothing)
    with pytest.raises(RecipeError, match="There is a task 'agreement' already"):
        octavo.metric(name="agreement")(nothing)


def broken(outputs: Any, label: Any) -> float:
    return float(outputs["nope"])


def nothing(outputs: Any, label: Any) -> float:
    return math.nan


def test_a_metric_out_of_a_file_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(colour_classifier(), tmp_path / "c.onnx")
    Path("metrics.py").write_text(
        "def hits(outputs, label):\n    return outputs['scores'].argmax() == label\n"
    )
    images = np.zeros((4, 3, 8, 8), np.float32)
    images[:, 1] = 1
    np.savez("test.npz", image=images, labels=np.array([1, 1, 0, 1]))
    command = ["evaluate", "c.onnx", "--task", "metrics.py:hits", "--data", "test.npz"]
    assert main([*command, "--engine", "serial"]) == 0
    assert "0.75" in capsys.readouterr().out
    assert main(["evaluate", "c.onnx", "--task", "metrics.py:misses", "--data", "test.npz"]) == 2
    assert "has no function 'misses'" in capsys.readouterr().err
    assert main(["evaluate", "c.onnx", "--task", "nowhere.py:hits", "--data", "test.npz"]) == 2


def test_a_model_in_memory_is_evaluated(float_model: Path) -> None:
    result = octavo.quantize(float_model, FEEDS[:4], effort="plain")
    found = octavo.evaluate(result, FEEDS, "agreement", against=conv_net())
    assert found.model == "the model in memory"
    assert found["sqnr_db"] > 15


def test_a_reference_in_bfloat16_is_computed_in_float32(tmp_path: Path) -> None:
    weight = RNG.standard_normal((4, 3)).astype(ml_dtypes.bfloat16)
    nodes = [
        node("Cast", ["x"], ["narrow"], "narrow", to=onnx.TensorProto.BFLOAT16),
        node("MatMul", ["narrow", "w"], ["product"], "product"),
        node("Cast", ["product"], ["y"], "y", to=onnx.TensorProto.FLOAT),
    ]
    path = save(
        model(nodes, [tensor("x", [1, 4])], [tensor("y", [1, 3])], {"w": weight}), tmp_path / "brain.onnx"
    )
    feeds = [{"x": np.float32([[1, 2, 3, 4]])}]
    result = octavo.evaluate(path, feeds, "agreement", against=path)
    assert any("computed in float32" in note for note in result.notes)
    timed = octavo.bench(path, data=feeds, seconds=0.01, profile=False, memory=False)
    assert any("computed in float32" in note for note in timed.notes)
    assert timed.models[0].file_bytes == path.stat().st_size
