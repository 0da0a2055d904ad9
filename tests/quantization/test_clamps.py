"""Relu and Clip behind a layer, through the drop-in: quantized, and still in force."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run, weights

from octavo.quantization import CalibrationDataReader, QuantFormat, quantize_static


class _Reader(CalibrationDataReader):
    def __init__(self, samples: list[dict[str, np.ndarray]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def _layer(op: str, low: float, high: float) -> onnx.ModelProto:
    shape = [1, 4, 8, 8] if op == "Conv" else [1, 6, 16]
    weight = weights(8, 4, 3, 3) if op == "Conv" else weights(16, 8)
    return model(
        [node(op, ["x", "w"], ["h"], "layer"), node("Clip", ["h", "low", "high"], ["y"], "clip")],
        [tensor("x", shape)],
        [tensor("y", None)],
        {"w": weight, "low": np.float32(low), "high": np.float32(high)},
    )


@pytest.mark.parametrize("style", list(QuantFormat))
@pytest.mark.parametrize("bounds", [(-1, 1), (-2, 3), (-0.5, 6), (0, 6)])
@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_clip_around_zero_is_quantized_and_stays_in_force(
    op: str, bounds: tuple[float, float], style: QuantFormat, tmp_path: Path
) -> None:
    proto = _layer(op, *bounds)
    shape = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(3)
    samples = [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(4)]
    quantize_static(proto, tmp_path / "q.onnx", _Reader(samples), quant_format=style)
    beyond = run(str(tmp_path / "q.onnx"), {"x": 4.0 * samples[0]["x"]})["y"]
    step = (bounds[1] - bounds[0]) / 255
    assert beyond.min() >= bounds[0] - step
    assert beyond.max() <= bounds[1] + step
    got, expected = run(str(tmp_path / "q.onnx"), samples[1])["y"], run(proto, samples[1])["y"]
    assert np.abs(got - expected).mean() < 0.03 * (bounds[1] - bounds[0])
    names = [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]
    assert "QuantizeLinear" in names


def test_clip_of_a_tensor_that_was_always_zero_keeps_its_bounds(tmp_path: Path) -> None:
    proto = _layer("MatMul", -1, 1)
    quantize_static(proto, tmp_path / "q.onnx", _Reader([{"x": np.zeros((1, 6, 16), np.float32)}]))
    got = run(str(tmp_path / "q.onnx"), {"x": np.full((1, 6, 16), 9, np.float32)})["y"]
    assert np.abs(got).max() <= 1 + 1 / 255
