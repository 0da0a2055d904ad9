"""``doctor`` says what will be hard."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import convolutions, feeds_for, layers, weights

import octavo
from octavo.cli.main import main
from octavo.comparison.diagnosis import Diagnosis, doctor
from octavo.model.files import io

from .injuries import attention


def _topics(found: Diagnosis) -> dict[str, str]:
    return {finding.topic: finding.severity for finding in found.findings}


def test_a_plain_model_has_nothing_wrong() -> None:
    proto = layers()
    found = doctor(proto, feeds_for(proto, 10))
    assert not found.findings and found.is_sound
    assert found.samples == 10
    assert "nothing found" in str(found)


def test_a_quantized_model_is_recognized() -> None:
    made = octavo.quantize(convolutions(), feeds_for(convolutions()), style="qoperator").model
    found = doctor(io.to_proto(made))
    assert _topics(found)["quantized already"] == "warning"


def test_old_opsets_and_dead_weights_are_noted() -> None:
    proto = layers()
    proto.opset_import[0].version = 12
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(9, np.float32), "dead"))
    topics = _topics(doctor(proto))
    assert topics["opset"] == "note" and topics["dead weights"] == "note"


def test_masks_are_noted() -> None:
    assert _topics(doctor(attention()))["masks"] == "note"


def test_channels_of_unlike_size_want_scales_of_their_own() -> None:
    proto = layers(1, 16)
    w = weights(16, 16)
    w[:, 0] *= 500
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "w0"))
    found = next(f for f in doctor(proto).findings if f.topic == "channels")
    assert found.place == "w0" and "dB" in found.text


def test_outliers_of_weights_and_activations_are_warned_of() -> None:
    proto = layers(1, 64)
    w = weights(64, 64) * 0.01
    w[5] = 300.0  # one row: an outlier in every channel
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "w0"))
    data = feeds_for(proto, 8)
    assert _topics(doctor(proto, data))["outliers"] == "warning"
    plain = layers(1, 64)
    many = [{"x": np.tile(weights(400, 64, seed=i), (2, 1))} for i in range(8)]
    many[3]["x"][0, 0] = 1e4
    outlier = next(f for f in doctor(plain, many).findings if f.topic == "outliers")
    assert outlier.place == "x"


def test_bad_data_is_a_finding_and_no_crash() -> None:
    proto = layers()
    wrong = doctor(proto, [{"x": np.zeros((2, 3), np.float32)}])
    assert not wrong.is_sound and _topics(wrong)["data"] == "error"
    same = doctor(proto, [feeds_for(proto, 1)[0]] * 9)
    assert any("all the same" in f.text for f in same.findings)
    few = doctor(proto, feeds_for(proto, 2))
    assert any("2 samples" in f.text for f in few.findings)


def test_joins_of_unlike_ranges_are_found_with_data() -> None:
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"], "first"),
            node("MatMul", ["x", "v"], ["b"], "second"),
            node("Concat", ["a", "b"], ["y"], "join", axis=1),
        ],
        [tensor("x", [4, 16])],
        [tensor("y", [4, 32])],
        {"w": weights(16, 16), "v": weights(16, 16, seed=1) * 1000},
    )
    found = doctor(proto, feeds_for(proto, 8))
    assert _topics(found) == {"mixed-range concat": "warning"}


def test_missing_weights_and_nan_are_errors() -> None:
    proto = layers(1)
    w = weights(16, 16)
    w[0, 0] = np.nan
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(w, "w0"))
    found = doctor(proto)
    assert any(f.severity == "error" and f.place == "w0" for f in found.findings)


def test_the_command_line_answers_in_words_and_in_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "model.onnx", "--data", "calib.npz", "--quiet"]) == 0
    assert "model.onnx" in capsys.readouterr().out
    assert main(["doctor", "model.onnx", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"schema", "model", "samples", "is_sound", "findings"}
