"""What a page is made of, and which results belong together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import conv_net
from quantizing import feeds_for

import octavo
from octavo.errors import RecipeError, TableError
from octavo.reporting.html import details, report_parts
from octavo.reporting.html.report_parts import sides
from reporting.html import hostile


@pytest.fixture(scope="module")
def result() -> octavo.Result:
    proto = conv_net()
    return octavo.quantize(proto, feeds_for(proto), histograms=True, verify=False, effort="plain")


def comparison(name: str) -> dict[str, object]:
    return {
        "schema": 1, "float_model": "f.onnx", "quantized": name, "form": "prepared", "samples": 1,
        "looked": 1, "matched": 1, "unmatched": [], "outputs": [], "culprits": [], "tensors": [],
        "weights": [], "notes": [],
    }  # fmt: skip


def test_results_about_one_model_are_one_side(result: octavo.Result) -> None:
    made = details.full(result, "folder/a.onnx")
    (side,) = sides([made, comparison("a.onnx"), hostile.evaluation("other/a.onnx")])
    assert list(side.parts) == ["quantization", "comparison", "evaluation"]
    assert side.name == "a.onnx"


def test_a_second_model_is_a_second_side(result: octavo.Result) -> None:
    found = sides([details.full(result, "a.onnx"), comparison("b.onnx"), details.full(result, "b.onnx")])
    assert [side.name for side in found] == ["a.onnx", "b.onnx"]
    assert set(found[1].parts) == {"comparison", "quantization"}


def test_results_without_names_fill_up_in_order(result: octavo.Result) -> None:
    assert len(sides([result, result])) == 2
    assert len(sides([result, hostile.bench([])])) == 1


def test_a_page_has_room_for_six_models(result: octavo.Result) -> None:
    assert len(sides([result] * 6)) == 6
    with pytest.raises(RecipeError, match="at most 6 models"):
        sides([result] * 7)
    with pytest.raises(RecipeError, match="at least one"):
        sides([])


def test_a_measurement_of_several_models_is_a_side_for_each_beside_the_first() -> None:
    timed = hostile.bench([])
    float_model, quantized = timed["models"][0], timed["models"][-1]
    others = [{**quantized, "name": name} for name in ("a.onnx", "b.onnx")]
    ratios = [{"value": value, "low": value, "high": value} for value in (2.0, 3.0)]
    found = sides([{**timed, "models": [float_model, *others], "ratios": ratios, "ratio": ratios[0]}])
    assert [side.name for side in found] == ["a.onnx", "b.onnx"]
    assert [side.parts["bench"]["ratio"]["value"] for side in found] == [2.0, 3.0]
    assert all(side.parts["bench"]["models"][0] == float_model for side in found)


def test_a_result_survives_its_json(result: octavo.Result, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(details.full(result, "a.onnx"), default=str))
    (side,) = sides([str(path)])
    rows = side.parts["quantization"]["details"]["tensors"]
    assert {row["kind"] for row in rows} >= {"weight", "activation"}
    assert all(row["histogram"] for row in rows if row["kind"] == "weight")
    assert any(row.get("histogram") for row in rows if row["kind"] == "activation")


def test_a_model_tells_ranges_weights_and_its_manifest(result: octavo.Result, tmp_path: Path) -> None:
    path = tmp_path / "q.onnx"
    result.save(path, manifest=True)
    (side,) = sides([path])
    made = side.parts["model"]
    assert made["float_bytes"] == result.float_bytes
    assert made["details"]["manifest"]["octavo"] == octavo.__version__
    found = {row["tensor"]: row for row in made["details"]["tensors"]}
    for key, params in result.params.items():
        if key.tensor in found and params.qtype.bits == 8 and params.scale.size == 1:
            assert found[key.tensor]["range"] == pytest.approx(list(params.real_range))
    assert any(row["kind"] == "weight" and row["histogram"] for row in made["details"]["tensors"])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("none.json", None, "does not exist"),
        ("bad.json", "{", "not JSON"),
        ("list.json", "[]", "not a JSON object"),
        ("other.json", '{"a": 1}', "not a result of octavo"),
        ("deep.json", "[" * 100_000, "not JSON"),
        ("bytes.json", b"\xff\xfe\x00", "not text"),
    ],
)
def test_a_wrong_file_is_a_sentence(tmp_path: Path, name: str, text: str | bytes | None, said: str) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TableError, match=said):
        sides([path])


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(RecipeError, match="not of int"):
        report_parts.parts_of(3)
