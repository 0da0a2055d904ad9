"""SmoothQuant through ``extra_options``, without any other package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from algorithms.nets import Feeds, outlier_block, sentences
from quantizing import run

from octavo.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from quantization.peer import Reader


class OnlyOnce(CalibrationDataReader):
    """Samples out of a generator, which can be neither copied nor gone through again."""

    def __init__(self, samples: list[Feeds]) -> None:
        self._left: Iterator[Feeds] = (sample for sample in samples)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def quantized(folder: Path, options: dict[str, Any], reader: Any = None, **more: Any) -> onnx.ModelProto:
    reader = Reader(sentences()) if reader is None else reader
    target = folder / "out.onnx"
    quantize_static(
        outlier_block(), target, reader, activation_type=QuantType.QUInt8, extra_options=options, **more
    )
    return onnx.load(target)


def squared_error(made: onnx.ModelProto) -> float:
    total = []
    for feeds in sentences(6, seed=9):
        want, got = run(outlier_block(), feeds), run(made, feeds)
        total += [np.mean((want[n].astype(np.float64) - got[n]) ** 2) for n in want]
    return float(np.mean(total))


def test_the_error_falls(tmp_path: Path) -> None:
    plain, smooth = quantized(tmp_path, {}), quantized(tmp_path, {"SmoothQuant": True})
    assert squared_error(smooth) < 0.7 * squared_error(plain)
    assert sorted(n.op_type for n in smooth.graph.node) == sorted(n.op_type for n in plain.graph.node)


def test_alpha_changes_what_is_moved(tmp_path: Path) -> None:
    scales = []
    for alpha in (0.3, 0.7):
        made = quantized(tmp_path, {"SmoothQuant": True, "SmoothQuantAlpha": alpha})
        scales.append({t.name: t.float_data[:] for t in made.graph.initializer if t.name.endswith("_scale")})
    assert scales[0] != scales[1]


def test_without_folding_a_mul_is_put_in(tmp_path: Path) -> None:
    folded = quantized(tmp_path, {"SmoothQuant": True})
    loose = quantized(tmp_path, {"SmoothQuant": True, "SmoothQuantFolding": False})
    count = [sum(n.op_type == "Mul" for n in made.graph.node) for made in (folded, loose)]
    assert count[1] > count[0]
    assert squared_error(loose) < 1.2 * squared_error(quantized(tmp_path, {}))


def test_a_reader_that_can_be_read_once(tmp_path: Path) -> None:
    one = quantized(tmp_path, {"SmoothQuant": True}, OnlyOnce(sentences()))
    assert one == quantized(tmp_path, {"SmoothQuant": True})


def test_alpha_and_folding_alone_change_nothing(tmp_path: Path) -> None:
    given = {"SmoothQuant": False, "SmoothQuantAlpha": 0.6, "SmoothQuantFolding": False}
    assert quantized(tmp_path, given) == quantized(tmp_path, {})


def test_a_cache_says_whether_it_was_smoothed(tmp_path: Path) -> None:
    cache = tmp_path / "cache.json"
    first = quantized(tmp_path, {"SmoothQuant": True}, calibration_cache_path=cache)
    assert json.loads(cache.read_text())["smooth_quant"] is True
    assert quantized(tmp_path, {"SmoothQuant": True}, calibration_cache_path=cache) == first
    with pytest.raises(ValueError, match="calibration_data_reader"):
        quantize_static(
            outlier_block(),
            tmp_path / "no.onnx",
            None,
            extra_options={"SmoothQuant": True},
            calibration_cache_path=cache,
        )


def test_dynamic_quantization_leaves_it_aside(tmp_path: Path) -> None:
    quantize_dynamic(outlier_block(), tmp_path / "d.onnx", extra_options={"SmoothQuant": True})
    quantize_dynamic(outlier_block(), tmp_path / "e.onnx")
    assert onnx.load(tmp_path / "d.onnx") == onnx.load(tmp_path / "e.onnx")
