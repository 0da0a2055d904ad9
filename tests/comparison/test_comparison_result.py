"""What a comparison says, and in which forms."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import numpy_helper
from quantizing import convolutions, feeds_for, layers, session, weights

import octavo
from octavo.cli.main import main
from octavo.cli.verb import as_json_text
from octavo.comparison.comparing import compare
from octavo.comparison.data_pass import EVERY, FIRST
from octavo.model.files import io

from .injuries import content, put

KEYS = {
    "schema", "float_model", "quantized", "form", "samples", "looked", "matched", "unmatched", "outputs",
    "culprits", "tensors", "weights", "notes", "recipe", "is_recorded",
}  # fmt: skip


def test_outputs_are_compared_in_every_sample_and_the_rest_in_some() -> None:
    proto = layers()
    data = feeds_for(proto, 25)
    made = octavo.quantize(proto, data, effort="plain")
    seen: list[tuple[str, int, int | None]] = []
    found = compare(proto, made.model, data, progress=lambda *step: seen.append(step))
    assert found.samples == 25
    assert found.looked == FIRST + len([i for i in range(FIRST, 25) if i % EVERY == 0])
    want = np.concatenate([session(proto).run(f)["r2"].ravel() for f in data]).astype(np.float64)
    got = np.concatenate([session(made).run(f)["r2"].ravel() for f in data])
    sqnr = 20 * np.log10(np.linalg.norm(want) / np.linalg.norm(want - got))
    assert found.outputs[0].errors is not None
    assert found.outputs[0].errors.sqnr == pytest.approx(sqnr, abs=0.01)
    assert ("compare", 25, 25) in seen


def test_samples_limits_the_data() -> None:
    proto = layers()
    data = feeds_for(proto, 5)
    assert compare(proto, octavo.quantize(proto).model, data, samples=2).samples == 2


def test_a_local_error_is_that_of_the_operator_alone() -> None:
    proto = layers(2)
    data = feeds_for(proto, 1)
    made = octavo.quantize(proto)  # dynamic: float results
    found = compare(proto, made.model, data)
    local = next(t.local for t in found.tensors if t.name == "m1")
    plain = io.load(proto)
    plain.graph.outputs.append(next(n for n in plain.graph if n.name == "/block_1/MatMul").inputs[0])
    x = session(io.to_proto(plain)).run(data[0])["r0"].astype(np.float64)
    w = content(proto, "w1").astype(np.float64)
    low, high = min(x.min(), 0.0), max(x.max(), 0.0)
    step = (high - low) / 255
    centre = np.rint(-low / step)
    xq = (np.clip(np.rint(x / step) + centre, 0, 255) - centre) * step
    scale = np.abs(w).max(axis=0) / 127
    wq = np.rint(w / scale) * scale
    error = x @ w - xq @ wq
    assert local is not None
    assert local.sqnr == pytest.approx(20 * np.log10(np.linalg.norm(x @ w) / np.linalg.norm(error)), abs=0.3)


def test_json_has_the_documented_keys_and_no_bare_infinity(tmp_path: Path) -> None:
    proto = layers()
    found = compare(proto, octavo.quantize(proto).model, feeds_for(proto))
    plain = found.to_dict()
    assert set(plain) == KEYS
    again = json.loads(as_json_text(plain))
    assert octavo.Recipe.from_dict(again["recipe"]) == found.base
    assert {"local", "accumulated", "execution", "clipped", "rounding", "used"} <= set(again["tensors"][0])


def test_it_prints_as_a_table_and_in_markdown() -> None:
    proto = layers()
    found = compare(proto, octavo.quantize(proto).model, feeds_for(proto))
    assert "No culprit" in str(found) and "local dB" in str(found)
    assert not found.culprits
    assert "| output |" in found.markdown()


def test_pandas_is_named_where_it_is_missing() -> None:
    proto = layers()
    found = compare(proto, octavo.quantize(proto).model, feeds_for(proto))
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(octavo.OctavoError, match="pip install pandas"):
            found.to_pandas()
    else:
        assert len(found.to_pandas()) == len(found.tensors)


def test_an_overflowing_bias_is_named() -> None:
    proto = convolutions(2)
    data = feeds_for(proto)
    made = io.to_proto(octavo.quantize(proto, data, style="qoperator").model)
    bias, scale = content(made, "b0_quantized").copy(), content(made, "w0_scale")
    factor = np.float32((2**31 - 1000) / abs(int(bias[0])))
    bias[0] = (2**31 - 1000) * np.sign(bias[0])  # with a scale so small that the sums wrap around
    scale = scale.copy()
    scale[0] /= factor
    put(made, "b0_quantized", bias)
    put(made, "w0_scale", scale)
    found = compare(proto, made, data)
    assert (found.culprits[0].tensor, found.culprits[0].cause) == ("b0", "bias overflow")


def test_a_difference_between_optimized_and_unoptimized_execution_is_noted() -> None:
    """The runtime rounds the float weights of a convolution between Q and DQ by one scale."""
    outlier = weights(8, 8, 3, 3) * np.where(np.arange(8) == 0, 2000.0, 1.0).reshape(8, 1, 1, 1).astype(
        np.float32
    )
    plain = model(
        [node("Conv", ["x", "w"], ["y"], "Conv_0", pads=[1, 1, 1, 1])],
        [tensor("x", [1, 8, 6, 6])], [tensor("y", [1, 8, 6, 6])], {"w": outlier},
    )  # fmt: skip
    numbers = {"xs": np.float32(0.05), "xz": np.uint8(128), "ys": np.float32(200.0), "yz": np.uint8(128)}
    quantized = model(
        [
            node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "xq"),
            node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "xd"),
            node("Conv", ["xd", "w"], ["c"], "Conv_0", pads=[1, 1, 1, 1]),
            node("QuantizeLinear", ["c", "ys", "yz"], ["cq"], "cq"),
            node("DequantizeLinear", ["cq", "ys", "yz"], ["y"], "cd"),
        ],
        [tensor("x", [1, 8, 6, 6])], [tensor("y", [1, 8, 6, 6])], {"w": outlier, **numbers},
    )  # fmt: skip
    found = compare(plain, quantized, feeds_for(plain, 2))
    assert found.outputs[0].execution is not None
    assert found.outputs[0].execution.max_error > 0
    assert found.tensors[0].execution is not None


def test_the_command_line_proposes_a_recipe_that_quantize_takes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantize = ["quantize", "model.onnx", "-o", "int8.onnx", "--data", "calib.npz", "--plain", "--quiet"]
    assert main(quantize) == 0
    proto = onnx.load("int8.onnx")
    scale = next(
        t for t in proto.graph.initializer if t.name.endswith("weight_scale") or t.name.endswith("w_scale")
    )
    coarsen_by_name(proto, scale.name.removesuffix("_scale"))
    onnx.save(proto, "injured.onnx")
    capsys.readouterr()
    command = ["compare", "model.onnx", "injured.onnx", "--data", "calib.npz", "--samples", "4", "--quiet"]
    assert main([*command, "--propose", "better.yaml", "--report", "compare.md", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["culprits"][0]["tensor"] == scale.name.removesuffix("_scale")
    arguments = [
        "quantize",
        "model.onnx",
        "-o",
        "better.onnx",
        "--data",
        "calib.npz",
        "--recipe",
        "better.yaml",
    ]
    assert main([*arguments, "--quiet"]) == 0
    assert (folder / "compare.md").read_text(encoding="utf-8").startswith("# ")


def coarsen_by_name(proto: onnx.ModelProto, name: str) -> None:
    """A coarse scale for a weight of any name."""
    stored = next(t for t in proto.graph.initializer if t.name == f"{name}_quantized")
    values = numpy_helper.to_array(stored)
    put(proto, f"{name}_quantized", np.rint(values / 32).astype(values.dtype))
    put(proto, f"{name}_scale", (content(proto, f"{name}_scale") * 32).astype(np.float32))


def test_a_wrong_request_is_a_sentence(folder: Path) -> None:
    assert main(["compare", "model.onnx", "model.onnx", "--data", "calib.npz"]) == 1
    assert main(["compare", "model.onnx", "x.onnx", "--data", "calib.npz", "--report", "x.pdf"]) == 2
