"""Proposals are carried out before they are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from builders import conv_net, node, tensor
from builders import model as build
from quantizing import feeds_for, weights

import octavo
from octavo.cli.main import main
from octavo.core.recipe import W8A8
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph.meta import KEY, recorded_recipe
from octavo.reporting.proposal_tables import proposal_line


def wide_range_net() -> onnx.ModelProto:
    """A net in which one tensor has outliers that leave the rest of it few levels in 8 bits."""
    scale = np.ones((1, 8), np.float32)
    scale[0, 0] = 300.0
    return build(
        [
            node("MatMul", ["x", "w0"], ["h"], "first"),
            node("Mul", ["h", "s"], ["m"], "spread"),
            node("MatMul", ["m", "w1"], ["y"], "second"),
        ],
        [tensor("x", [1, 8])],
        [tensor("y", [1, 4])],
        {"w0": weights(8, 8), "s": scale, "w1": weights(8, 4) / scale.T},
    )


@pytest.fixture(scope="module")
def found() -> tuple[octavo.Proposal, octavo.Result, onnx.ModelProto, list[dict[str, Any]]]:
    proto = wide_range_net()
    data = feeds_for(proto, 16)
    result = octavo.quantize(proto, data, recipe=W8A8.but(placement=octavo.Placement.EVERYWHERE))
    return octavo.propose(proto, result, data), result, proto, data


def test_a_model_carries_the_recipe_that_it_was_made_by(tmp_path: Path) -> None:
    recipe = W8A8.but(steps=("bias-correction",), op_types=("Conv",))
    proto = conv_net()
    octavo.quantize(proto, feeds_for(proto), recipe=recipe, output=tmp_path / "q.onnx")
    assert recorded_recipe(io.load(tmp_path / "q.onnx")) == recipe


def test_a_text_that_is_not_a_recipe_counts_as_none() -> None:
    model = io.load(conv_net())
    for text in ("", "{", "[]", '{"weights": 7}', "[" * 50_000):
        model.metadata_props[KEY] = text
        assert recorded_recipe(model) is None


def test_a_proposal_keeps_the_recipe_and_gains_on_held_back_samples(found: Any) -> None:
    proposal, result, proto, data = found
    assert proposal.is_recorded and proposal.is_better
    assert proposal.held_back == 4
    assert proposal.recipe.placement == result.recipe.placement
    assert all(one.gain_db >= 0.1 and one.interval[0] > 0 for one in proposal.kept)
    again = octavo.quantize(proto, data, recipe=proposal.recipe)
    fresh = feeds_for(proto, 24)[16:]
    before, after = (octavo.compare(proto, one, fresh).outputs[0].errors.sqnr for one in (result, again))
    assert after > before + 3


def test_what_does_not_help_is_not_proposed(found: Any) -> None:
    proposal, _, proto, data = found
    better = octavo.quantize(proto, data, recipe=proposal.recipe)
    again = octavo.propose(proto, better, data)
    assert set(again.recipe.exclude) >= set(proposal.recipe.exclude)
    for one in again.tried:
        assert one.kept or one.reason


def test_the_recipe_file_has_the_gain_beside_each_change(found: Any, tmp_path: Path) -> None:
    proposal = found[0]
    proposal.save(tmp_path / "better.yaml")
    text = (tmp_path / "better.yaml").read_text(encoding="utf-8")
    assert octavo.Recipe.from_dict(yaml.safe_load(text)) == proposal.recipe
    assert text.count(" dB (+") == len(proposal.kept)
    proposal.save(tmp_path / "better.json")
    assert json.loads((tmp_path / "better.json").read_text(encoding="utf-8"))["weights"]


def test_it_prints_in_a_few_lines(found: Any) -> None:
    proposal = found[0]
    assert str(proposal).startswith("Proposal: ") and "held-back samples" in str(proposal)
    assert len(repr(proposal)) < 200
    assert proposal._repr_html_().startswith("<pre>")


def test_two_quantized_models_are_refused_with_the_way_to_compare_them(found: Any) -> None:
    _, result, _, data = found
    with pytest.raises(ModelError, match=r"quantized itself.*--task agreement"):
        octavo.compare(result.model, result, data)


def test_nothing_is_written_where_nothing_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = conv_net()
    onnx.save(proto, str(tmp_path / "model.onnx"))
    np.savez(tmp_path / "calib.npz", x=np.concatenate([feed["x"] for feed in feeds_for(proto, 16)]))
    monkeypatch.chdir(tmp_path)
    assert main(["quantize", "model.onnx", "-o", "q.onnx", "--data", "calib.npz", "--plain"]) == 0
    capsys.readouterr()
    command = ["compare", "model.onnx", "q.onnx", "--data", "calib.npz", "--propose", "better.yaml", "--json"]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)["proposal"]
    assert (tmp_path / "better.yaml").exists() is said["is_better"]


def test_a_proposal_without_changes_says_that_there_was_nothing_to_try() -> None:
    data = {"held_back": 6, "tried": [], "is_better": False}
    assert proposal_line(data).startswith("nothing to try")
    assert proposal_line({**data, "tried": [{}]}) == "no change helps (1 change tried on 6 held-back samples)"
