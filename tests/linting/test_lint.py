"""The report, the command line, and what other tools and Octavo itself make."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import conv_net
from quantizing import convolutions, feeds_for, layers

import octavo
from octavo.cli.main import main
from octavo.linting.rules.accepted import at_risk, rows
from octavo.model.files import io
from octavo.targets import TARGETS

from .planted import OUTLIER, S8, U8, Net, conv, gemm, integers

MODELS = {"conv_net": conv_net, "layers": layers, "convolutions": convolutions}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_found_in_octavos_own_results(name: str, target: str) -> None:
    proto = MODELS[name]()
    if target == "ort-cuda" and name == "convolutions":
        with pytest.raises(octavo.ModelError, match="nothing that can be quantized"):
            octavo.quantize(proto, feeds_for(proto), target=target, effort="plain")
        return
    result = octavo.quantize(proto, feeds_for(proto), target=target, effort="plain")
    assert not octavo.lint(result.model, target=target).findings


@pytest.mark.parametrize("style", ["qoperator", "integer"])
def test_other_styles_are_clean_too(style: str) -> None:
    proto = layers()
    data = feeds_for(proto) if style == "qoperator" else None
    result = octavo.quantize(proto, data, target="ort-cpu-vnni", style=style)
    assert not octavo.lint(result.model, target="ort-cpu-vnni").findings


def test_an_operator_with_a_float_operand_is_not_called_unfused() -> None:
    net = Net()
    other = net.op("Tanh", ["x"], "t")
    y = net.pair(net.op("Mul", [net.pair("x"), other], "m"), 0.1)
    assert not octavo.lint(net.done(y, [4, 8], [4, 8]), target="ort-cpu-vnni").findings


def test_sixteen_bits_for_qnn_are_clean() -> None:
    proto = conv_net()
    recipe = octavo.Recipe(
        weights=octavo.W8A8.weights, activations=octavo.W8A16.activations, target="qnn",
        placement=octavo.Placement.EVERYWHERE,
    )  # fmt: skip
    result = octavo.quantize(proto, feeds_for(proto), recipe=recipe)
    assert not octavo.lint(result.model, target="qnn").findings


def test_a_sheet_finds_fault_with_the_results_for_another() -> None:
    proto = convolutions()
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    assert {"OCT204", "OCT501", "OCT502"} <= octavo.lint(result.model, target="tensorrt").rules
    assert "OCT509" in octavo.lint(result.model, target="ort-cpu-avx2").rules


def test_findings_that_say_the_same_are_one_on_the_screen() -> None:
    proto = convolutions()
    result = octavo.quantize(proto, feeds_for(proto), target="ort-cpu-vnni", effort="plain")
    found = octavo.lint(result.model, target="tensorrt")
    uint8 = [one for one in found.findings if one.rule == "OCT502"]
    assert len(uint8) > 1
    assert str(found).count("OCT502") == 1
    assert f"OCT502 error   {len(uint8)} nodes: {uint8[0].node}, " in str(found)


def test_a_finding_is_plain_data() -> None:
    found = octavo.lint(conv(x_zero=S8(0), y_zero=S8(-128)), target="ort-cpu-vnni")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["target"] == "ort-cpu-vnni"
    assert {one["rule"] for one in data["findings"]} == {"OCT301"}
    assert all(one["fixable"] and one["severity"] == "warning" for one in data["findings"])


def test_sarif_has_a_rule_for_each_result() -> None:
    log = octavo.lint(gemm(bias_factor=2.0), target="ort-cpu-vnni").to_sarif()
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        assert result["message"]["text"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["artifactLocation"]["uri"]
        assert place["logicalLocations"][0]["name"]


def test_the_command_line_finds_fixes_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "better.onnx"
    onnx.save(gemm(bias_factor=2.0), source)
    assert main(["lint", str(source)]) == 1
    assert "OCT201" in capsys.readouterr().out
    assert main(["lint", str(source), "--fix", str(output), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert not data["findings"]
    assert [one["rule"] for one in data["fixed"]] == ["OCT201"]
    assert main(["lint", str(output)]) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main(["lint", str(source), "--sarif"]) == 1
    assert json.loads(capsys.readouterr().out)["runs"][0]["results"]


def test_the_model_itself_is_never_written_over(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(gemm(bias_factor=2.0), source)
    before = source.read_bytes()
    assert main(["lint", str(source), "--fix", str(source)]) == 2
    assert source.read_bytes() == before


def test_the_callers_model_is_not_changed() -> None:
    model = io.load(conv(x_zero=S8(0), y_zero=S8(-128)))
    before = io.to_bytes(model)
    octavo.lint(model, target="ort-cpu-vnni", fix=True)
    assert io.to_bytes(model) == before


def test_constant_nodes_are_seen_through() -> None:
    proto = conv(y_zero=U8(128))
    for tensor in list(proto.graph.initializer):
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], [tensor.name], value=tensor))
    del proto.graph.initializer[:]
    assert octavo.lint(proto, target="ort-cpu-vnni").rules == {"OCT408", "OCT602"}


def test_a_float_model_has_no_faults() -> None:
    assert not octavo.lint(conv_net(), target="tensorrt").findings


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(octavo.RecipeError, match="is not a target"):
        octavo.lint(conv_net(), target="ort-gpu")


def test_the_estimate_of_saturation_is_the_worst_case_of_the_instruction() -> None:
    node = next(n for n in io.load(conv()).graph if n.op_type == "Conv")
    assert at_risk(integers(8, 8, 3, 3, top=64), node) == 0.0
    share = at_risk(OUTLIER, node)
    pairs = np.moveaxis(OUTLIER, 1, -1).reshape(8, -1, 2).astype(np.int64)
    # The worst input of a pair: 255 where the weight has the sign that is more, 0 elsewhere.
    high = 255 * np.maximum(pairs, 0).sum(axis=2) > 32767
    low = 255 * np.minimum(pairs, 0).sum(axis=2) < -32768
    assert share == pytest.approx(np.mean(high | low))
    assert share > 0.2


@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_a_weight_of_one_axis_is_one_row(op: str) -> None:
    node = ir.Node("", op, inputs=[], attributes=[ir.AttrInt64("transB", 1)])
    assert rows(np.arange(5, dtype=np.int8), node).tolist() == [[0, 1, 2, 3, 4]]
