"""A table takes the place of calibration data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor
from quantizing import convolutions, feeds_for, run

import octavo
from octavo.calibration import tables
from octavo.cli.main import main
from octavo.core.plan import Key
from octavo.core.stats import Range


def measured() -> dict[str, Range]:
    """The ranges that a calibration of the model finds."""
    proto = convolutions()
    result = octavo.quantize(proto, feeds_for(proto), effort="plain")
    assert result.stats is not None
    return {name: Range(state.low, state.high) for name, state in result.stats.items()}


def test_quantizing_with_a_table_gives_a_model_as_good_as_from_data(tmp_path: Path) -> None:
    proto = convolutions()
    samples = feeds_for(proto)
    tables.save(measured(), tmp_path / "t.json")
    found = octavo.quantize(proto, stats=tables.as_stats(tables.load(tmp_path / "t.json")))
    plain = run(proto, samples[0])
    for name, array in run(found, samples[0]).items():
        assert np.abs(array - plain[name]).max() < 0.1 * np.abs(plain[name]).max()


def test_scales_follow_the_table(tmp_path: Path) -> None:
    ranges = {name: Range(-8.0, 8.0) for name in measured()}
    tables.save(ranges, tmp_path / "t.cache")
    proto = convolutions()
    result = octavo.quantize(proto, stats=tables.as_stats(tables.load(tmp_path / "t.cache"), proto))
    assert float(result.params[Key("x", "Conv_0")].scale) == pytest.approx(16 / 255)
    assert float(result.params[Key("r0")].scale) == pytest.approx(8 / 255), "nothing negative after a Relu"


def test_ranges_are_cut_to_what_a_clip_lets_through() -> None:
    proto = model(
        [node("Clip", ["x", "low", "high"], ["y"], "c")],
        [tensor("x", [2])],
        [tensor("y", [2])],
        {"low": np.float32(-1), "high": np.float32(6)},
    )
    ranges = {"x": Range(-9.0, 9.0), "y": Range(-9.0, 9.0), "other": Range(-1.0, 1.0)}
    found = tables.within_clamps(ranges, proto)
    assert found == {"x": Range(-9.0, 9.0), "y": Range(-1.0, 6.0), "other": Range(-1.0, 1.0)}


@pytest.mark.parametrize("suffix", [".json", ".cache", ".flatbuffers"])
def test_command_quantizes_with_a_table(tmp_path: Path, suffix: str) -> None:
    onnx.save(convolutions(), tmp_path / "m.onnx")
    tables.save(measured(), tmp_path / f"t{suffix}")
    arguments = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx")]
    assert main([*arguments, "--table", str(tmp_path / f"t{suffix}")]) == 0
    found = onnx.load(tmp_path / "q.onnx")
    assert "QuantizeLinear" in {n.op_type for n in found.graph.node}


def test_command_refuses_a_table_beside_data_and_a_damaged_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(conv_net(), tmp_path / "m.onnx")
    (tmp_path / "t.json").write_text("{")
    arguments = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx"), "--table"]
    assert main([*arguments, str(tmp_path / "t.json"), "--data", "d.npz"]) == 2
    assert "--table takes the place of --data" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "t.json")]) != 0
    assert "t.json: The table is not JSON" in capsys.readouterr().err
    assert not (tmp_path / "q.onnx").exists()
